"""Defaults of a request that gives no temperature and no stop strings."""

from __future__ import annotations

import pytest

from outrider.text.defaults import DEFAULTS, defaults_of
from outrider.text.parameters import Parameters

EMBEDDED = "outrider-embedded-target"
SCHEMA = {"type": "object"}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_without_defaults_takes_those_of_the_interface(temperature: float) -> None:
    settled = Parameters().settled("another", temperature)
    assert (settled.temperature, settled.stop) == (temperature, ())


def test_the_embedded_pair_is_sampled_and_its_text_ends_after_a_function() -> None:
    settled = Parameters().settled(EMBEDDED, 1.0)
    assert settled.temperature == 0.8
    assert "\ndef " in (settled.stop or ())


def test_a_stated_temperature_gives_the_whole_text_of_the_embedded_pair() -> None:
    settled = Parameters(temperature=0.0).settled(EMBEDDED, 1.0)
    assert (settled.temperature, settled.stop) == (0.0, ())


def test_stated_stop_strings_stay() -> None:
    assert Parameters(stop=["x"]).settled(EMBEDDED).stop == ["x"]
    assert Parameters(stop=[]).settled(EMBEDDED).stop == []


@pytest.mark.parametrize("form", [{"schema": SCHEMA}, {"regex": "a*"}, {"choice": ["a", "b"]}])
def test_no_default_stop_string_cuts_a_text_of_a_given_form(form: dict[str, object]) -> None:
    settled = Parameters(**form).settled(EMBEDDED)  # type: ignore[arg-type]
    assert (settled.temperature, settled.stop) == (0.8, ())


@pytest.mark.parametrize("model", DEFAULTS)
def test_defaults_are_within_what_a_request_may_ask(model: str) -> None:
    given = Parameters().settled(model)
    assert Parameters(temperature=given.temperature, stop=given.stop).stop == given.stop
    assert all(prompt.strip() for prompt in defaults_of(model).suggestions)
