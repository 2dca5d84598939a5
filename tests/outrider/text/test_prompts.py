"""Prompts and parameters become requests, and stop strings end a text however it is cut."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.text.tokenizer import Tokenizer
from outrider.models.found_model import EMBEDDED
from outrider.options.groups import TextOptions
from outrider.text.json_values import needed, written
from outrider.text.parameters import DEFAULTS, Parameters, defaults_of
from outrider.text.pieces import MAX_STOP_LENGTH, MAX_STOPS, StopStrings
from outrider.text.prompts import TextModel, make_requests, read_prompts
from tests.support.refusals import assert_refused

TOKENIZER = Tokenizer(EMBEDDED / "target")
MODEL = TextModel("", TOKENIZER, 20, frozenset())


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def type_in(raw: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))

    type_in(b"def a():\n    pass\n")
    assert read_prompts(TextOptions(prompt="-")) == ["def a():\n    pass"]
    type_in(b"one\n\ntwo\n")
    assert read_prompts(TextOptions(prompt_text="-")) == ["one", "two"]
    for raw, options in ((b"\n", TextOptions(prompt="-")), (b"", TextOptions(prompt_text="-"))):
        type_in(raw)
        assert_refused(lambda: read_prompts(options), ["standard input", "no prompt"])  # noqa: B023


def test_what_the_sequence_length_cuts_is_said_with_both_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (request,) = make_requests(MODEL, TextOptions(prompt="x", max_new_tokens=500), ["x"])
    said = capsys.readouterr().err
    assert f"500 is cut to {request.max_new_tokens}" in said
    assert request.max_new_tokens == 20 - len(request.ids)


REFUSED: list[tuple[Callable[[], object], list[str]]] = [
    (lambda: TOKENIZER.encode("caf\udce9"), ["UTF-8", "byte 0xe9 at position 3"]),
    (lambda: TOKENIZER.encode("\ud83d"), ["surrogate", "U+D83D"]),
    (lambda: written("{"), ["the schema cannot be read"]),
    (lambda: written("[" * 100_000), ["the schema cannot be read"]),
    (lambda: StopStrings([""]), ["stop strings"]),
    (lambda: StopStrings(["x" * (MAX_STOP_LENGTH + 1)]), ["stop strings"]),
    (lambda: StopStrings(["x"] * (MAX_STOPS + 1)), ["stop strings"]),
]


@pytest.mark.parametrize(("call", "words"), REFUSED)
def test_what_is_no_text_no_schema_and_no_stop_string_is_refused(
    call: Callable[[], object], words: list[str]
) -> None:
    assert_refused(call, words)


def test_files_that_cannot_be_read_are_refused_with_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"one\ntw\xf6\n")
    options = TextOptions(prompt_text=str(file))
    assert_refused(lambda: read_prompts(options), ["UTF-8: line 2 ", "0xf6"])
    file.write_text("here")
    schema = TextOptions(prompt="x", schema=str(file))
    assert_refused(lambda: make_requests(MODEL, schema, ["x"]), [f"--schema {file}"])


FUNCTION_ENDS = DEFAULTS["outrider-embedded-target"].stop
SETTLED: list[tuple[dict[str, Any], float, tuple[str, ...]]] = [
    ({}, 0.8, FUNCTION_ENDS),
    ({"temperature": 0.0}, 0.0, ()),  # the whole text
    ({"stop": ["x"]}, 0.8, ("x",)),
    ({"stop": []}, 0.8, ()),
    ({"schema": {"type": "object"}}, 0.8, ()),
    ({"regex": "a*"}, 0.8, ()),
    ({"choice": ["a", "b"]}, 0.8, ()),
]


@pytest.mark.parametrize(("fields", "temperature", "stop"), SETTLED)
def test_the_embedded_pair_is_sampled_and_its_text_ends_after_a_function_unless_stated(
    fields: dict[str, Any], temperature: float, stop: tuple[str, ...]
) -> None:
    settled = Parameters(**fields).settled("outrider-embedded-target", 1.0)
    assert (settled.temperature, tuple(settled.stop or ())) == (temperature, stop)


def test_defaults_are_the_interfaces_or_within_what_a_request_may_ask() -> None:
    for temperature in (0.0, 1.0):
        settled = Parameters().settled("another", temperature)
        assert (settled.temperature, settled.stop) == (temperature, ())
    assert "\ndef " in FUNCTION_ENDS
    for model, defaults in DEFAULTS.items():
        assert Parameters(temperature=defaults.temperature, stop=defaults.stop)
        assert all(prompt.strip() for prompt in defaults_of(model).suggestions)


STRING = {"type": "string"}
SCHEMAS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "object", "propertyNames": STRING}, {"type": "object"}),
    ({"items": {"uniqueItems": False, "items": True}}, {"items": {"items": True}}),
    ({"anyOf": [STRING | {"format": "path"}, {}]}, {"anyOf": [STRING, {}]}),
    ({"$defs": {"a": {"unevaluatedProperties": True}}}, {"$defs": {"a": {}}}),
]
UNCHANGED: list[dict[str, Any]] = [
    {"propertyNames": {"pattern": "^a"}},
    {"uniqueItems": True},
    {"format": "date"},
    {"properties": {"propertyNames": STRING, "format": True}, "required": ["format"]},
    {"const": {"uniqueItems": False}},
    {"enum": [{"format": "path"}]},
    {"items": [STRING, False]},
]


@pytest.mark.parametrize(("schema", "left"), [*SCHEMAS, *zip(UNCHANGED, UNCHANGED, strict=True)])
def test_only_keywords_that_ask_for_nothing_are_left_out_of_a_schema(
    schema: dict[str, Any], left: dict[str, Any]
) -> None:
    assert needed(schema) == left
    assert json.loads(written(json.dumps(schema))) == left


LETTERS = st.text("ab\n", max_size=24)


def cut(text: str, places: list[int]) -> list[str]:
    at = [0, *sorted(place for place in set(places) if place < len(text)), len(text)]
    return [text[start:end] for start, end in pairwise(at)]


@given(LETTERS, st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3), st.data())
def test_the_text_ends_before_the_first_stop_string(
    text: str, strings: list[str], data: st.DataObject
) -> None:
    stops = StopStrings(strings)
    pieces = cut(text, data.draw(st.lists(st.integers(1, 30), max_size=12)))
    made = ""
    for piece in pieces:
        made += stops.push(piece)
        if stops.match:
            break
    made += stops.finish()
    found = any(string in text for string in strings)
    assert bool(stops.match) == found
    assert text.startswith(made)
    assert not any(string in made for string in strings)
    if not found:
        assert made == text


def test_the_earliest_of_several_ends_the_text() -> None:
    stops = StopStrings(["cd", "b"])
    assert stops.push("abcd") == "a"
    assert stops.push("more") == ""
