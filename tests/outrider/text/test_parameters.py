"""Parameters: what a request without them gets, and schemas without keywords of no effect."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from inference.errors import InvalidRequest
from outrider.text.json_values import needed, written
from outrider.text.parameters import DEFAULTS, Parameters, defaults_of
from tests.support.refusals import assert_refused

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


STRING = {"type": "string"}


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"type": "object", "propertyNames": STRING}, {"type": "object"}),
        ({"items": {"uniqueItems": False, "items": True}}, {"items": {"items": True}}),
        ({"anyOf": [STRING | {"format": "path"}, {}]}, {"anyOf": [STRING, {}]}),
        ({"$defs": {"a": {"unevaluatedProperties": True}}}, {"$defs": {"a": {}}}),
    ],
)
def test_what_asks_for_nothing_is_left_out(given: Any, left: Any) -> None:
    assert needed(given) == left


@pytest.mark.parametrize(
    "schema",
    [
        {"propertyNames": {"pattern": "^a"}},
        {"uniqueItems": True},
        {"format": "date"},
        {"properties": {"propertyNames": STRING, "format": True}, "required": ["format"]},
        {"const": {"uniqueItems": False}},
        {"enum": [{"format": "path"}]},
        {"items": [STRING, False]},
    ],
)
def test_everything_else_stays(schema: dict[str, Any]) -> None:
    assert needed(schema) == schema
    assert json.loads(written(json.dumps(schema))) == schema


def test_what_is_no_json_is_refused() -> None:
    for text in ("{", "[" * 100_000):
        assert_refused(partial(written, text), ["the schema cannot be read"], InvalidRequest)
