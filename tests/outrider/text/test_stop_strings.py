"""Stop strings end a text at the same place, however its pieces are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import InvalidRequest
from outrider.text.stop_strings import LONGEST, MOST, StopStrings

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
        if stops.found:
            break
    made += stops.finish()
    ends = [(text.find(string) + len(string), text.find(string)) for string in strings]
    found = [end for end in ends if end[1] >= 0]
    assert stops.found == bool(found)
    assert text.startswith(made)
    assert not any(string in made for string in strings)
    if not found:
        assert made == text


def test_the_earliest_of_several_ends_the_text() -> None:
    stops = StopStrings(["cd", "b"])
    assert stops.push("abcd") == "a"
    assert stops.push("more") == ""


@pytest.mark.parametrize("strings", [[""], ["x" * (LONGEST + 1)], ["x"] * (MOST + 1)])
def test_strings_out_of_bounds_are_refused(strings: list[str]) -> None:
    with pytest.raises(InvalidRequest):
        StopStrings(strings)
