"""Prompts are read and become requests; stop strings end a text wherever its pieces are cut."""

from __future__ import annotations

import io
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference import errors
from inference.errors import UnsupportedModel
from outrider.draft_methods import find_draft
from outrider.options.groups import DraftModelOptions, TextOptions
from outrider.text.pieces import MAX_STOP_LENGTH, MAX_STOPS, StopStrings
from outrider.text.prompts import TextModel, make_requests, read_prompts
from tests.support.refusals import assert_refused


class Piped(io.TextIOWrapper):
    """Standard input that holds this."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(io.BytesIO(raw))


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Piped(b"def a():\n    pass\n"))
    assert read_prompts(TextOptions(prompt="-")) == ["def a():\n    pass"]
    monkeypatch.setattr("sys.stdin", Piped(b"one\n\ntwo\n"))
    assert read_prompts(TextOptions(prompt_text="-")) == ["one", "two"]


def test_standard_input_that_holds_nothing_is_an_empty_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", Piped(b"\n"))
    assert_refused(lambda: read_prompts(TextOptions(prompt="-")), ["standard input", "no prompt"])
    monkeypatch.setattr("sys.stdin", Piped(b""))
    given = TextOptions(prompt_text="-")
    assert_refused(lambda: read_prompts(given), ["standard input", "no prompt"])


def test_a_schema_that_is_no_json_is_refused_with_the_name_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "schema").write_text("here")
    tokenizer = find_draft(DraftModelOptions()).tokenizer
    options = TextOptions(prompt="x", schema=str(tmp_path / "schema"))
    made = partial(make_requests, TextModel("", tokenizer, 20, frozenset()), options, ["x"])
    assert_refused(made, [f"--schema {tmp_path / 'schema'}"])


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [("caf\udce9", ["UTF-8", "byte 0xe9 at position 3"]), ("\ud83d", ["surrogate", "U+D83D"])],
)
def test_a_prompt_that_is_not_unicode_is_refused_with_what_is_wrong_in_it(
    prompt: str, shown: list[str]
) -> None:
    tokenizer = find_draft(DraftModelOptions()).tokenizer
    assert_refused(lambda: tokenizer.encode(prompt), shown)


def test_a_file_that_is_not_utf_8_is_refused_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "prompts").write_bytes(b"one\ntw\xf6\n")
    options = TextOptions(prompt_text=str(tmp_path / "prompts"))
    assert_refused(lambda: read_prompts(options), ["UTF-8: line 2 ", "0xf6"])


def test_what_the_sequence_length_cuts_is_said_with_both_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tokenizer = find_draft(DraftModelOptions()).tokenizer
    options = TextOptions(prompt="x", max_new_tokens=500)
    (request,) = make_requests(TextModel("", tokenizer, 20, frozenset()), options, ["x"])
    said = capsys.readouterr().err
    assert f"500 is cut to {request.max_new_tokens}" in said
    assert request.max_new_tokens == 20 - len(request.ids)


def test_gguf_weights_are_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "is_installed", lambda package: True)
    (tmp_path / "model.gguf").touch()
    for name in (tmp_path, tmp_path / "model.gguf"):
        options = DraftModelOptions(draft_model=str(name))
        assert_refused(partial(find_draft, options), ["GGUF"], UnsupportedModel)


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
    ends = [(text.find(string) + len(string), text.find(string)) for string in strings]
    found = [end for end in ends if end[1] >= 0]
    assert bool(stops.match) == bool(found)
    assert text.startswith(made)
    assert not any(string in made for string in strings)
    if not found:
        assert made == text


def test_the_earliest_of_several_ends_the_text() -> None:
    stops = StopStrings(["cd", "b"])
    assert stops.push("abcd") == "a"
    assert stops.push("more") == ""


@pytest.mark.parametrize("strings", [[""], ["x" * (MAX_STOP_LENGTH + 1)], ["x"] * (MAX_STOPS + 1)])
def test_strings_out_of_bounds_are_refused(strings: list[str]) -> None:
    assert_refused(lambda: StopStrings(strings), [])
