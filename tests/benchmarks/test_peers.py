"""Engines in environments of their own answer a line at a time, and say why they cannot."""

from __future__ import annotations

import sys

import pytest

from benchmarks.rivals.arm import make
from benchmarks.rivals.child import peer
from inference.errors import Unavailable

REPEATING = """
from benchmarks.rivals.worker import answer

def repeat(prompt, tokens, hear):
    print("not an answer")
    for token in prompt[:tokens]:
        hear([token])
    return tokens, tokens - 1

answer(lambda: {"repeating": repeat}, ("pytest",))
"""


def test_what_an_engine_hands_over_is_heard_and_what_it_prints_is_not() -> None:
    command = [sys.executable, "-c", REPEATING]
    with peer("repeating", command, ["repeating"]) as arms:
        for _ in range(2):
            made = make(arms[0], [5, 6, 7], 2)
            assert (made.ids, made.first, made.tokens, made.passes) == ([5, 6], 1, 2, 1)


def test_an_engine_that_cannot_play_here_says_why_in_one_line() -> None:
    command = [sys.executable, "-c", "raise AssertionError('no such device')"]
    with (
        pytest.raises(Unavailable, match=r"^one cannot play here: AssertionError: no such device$"),
        peer("one", command, ["one"]),
    ):
        pytest.fail("it loads nothing")
