"""Engines in environments of their own answer a line at a time, and say why they cannot."""

from __future__ import annotations

import sys
from threading import Event

import pytest

from benchmarks.rivals.arm import rival_arm
from benchmarks.rivals.child import peer
from inference.cost.billing import Billing
from inference.errors import Unavailable
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from outrider.measure.account import Account
from outrider.models.directories import EMBEDDED
from outrider.text.completion import Request

TOKENIZER, ACCOUNT = Tokenizer(EMBEDDED / "target"), Account(Billing(), whole=True)
REPEATING = """
from benchmarks.rivals.worker import answer

def repeat(prompt, tokens, stop_ids, hear):
    print("not an answer")
    for token in prompt[:tokens]:
        hear([token])
    return tokens

answer(lambda: {"repeating": repeat}, ("pytest",))
"""


def test_what_an_engine_hands_over_is_a_text_and_what_it_prints_is_not() -> None:
    command = [sys.executable, "-c", REPEATING]
    request = Request(0, "", [5, 6, 7], SamplingParams(), 2, frozenset([6]))
    with peer("repeating", command, ["repeating"]) as plays:
        arm = rival_arm("repeating", plays["repeating"], TOKENIZER, ACCOUNT)
        for _ in range(2):
            done = arm.make(request, Event())
            assert (done.token_ids, done.chunk_tokens, done.traffic.forwards) == ([5, 6], [1, 1], 2)
            assert done.finish_reason == "stop"


def test_an_engine_that_cannot_play_here_says_why_in_one_line() -> None:
    command = [sys.executable, "-c", "raise AssertionError('no such device')"]
    with (
        pytest.raises(Unavailable, match=r"^one cannot play here: AssertionError: no such device$"),
        peer("one", command, ["one"]),
    ):
        pytest.fail("it loads nothing")
