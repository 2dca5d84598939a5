"""A draft beside the target is silent while others make a text faster than it would."""

from __future__ import annotations

import pytest

from inference.engine.colocated.arbitration import (
    LEFT_ALONE,
    WATCHED,
    ProposerArbitration,
    token_seconds,
)
from inference.proposer import COLOCATED, MODEL, NOBODY

FORWARD = 0.040


def told(
    others: ProposerArbitration, tokens: int, forwards: int, kind: int = MODEL, length: int = 0
) -> int:
    """So many forwards bring so many tokens each; the length that the text has then."""
    for _ in range(forwards):
        length += tokens
        others.observe(length, [kind] * (tokens - 1) + [NOBODY], 1)
    return length


def test_nobody_else_names_a_token_so_it_goes_on() -> None:
    others = ProposerArbitration()
    length = told(others, 5, 20, COLOCATED)
    assert not others.suffice(length, FORWARD, 1.0)


def test_it_is_silent_while_others_are_quicker_than_it_would_be() -> None:
    others = ProposerArbitration()
    length = told(others, 8, 1)
    for _ in range(30):
        length = told(others, 8, 1, length=length)
        assert others.suffice(length, FORWARD, 0.006)


def test_it_goes_on_when_they_are_slower_and_looks_again_after_a_while() -> None:
    others = ProposerArbitration()
    length = told(others, 3, 2 + WATCHED)
    assert not others.suffice(length, FORWARD, 0.008)
    again = length + LEFT_ALONE
    while length < again:
        assert not others.suffice(length, FORWARD, 0.008)
        length = told(others, 3, 1, length=length)
    assert others.suffice(length, FORWARD, 0.008)


def test_it_comes_back_when_others_stop() -> None:
    others = ProposerArbitration()
    length = told(others, 8, 20)
    assert others.suffice(length, FORWARD, 0.008)
    length = told(others, 1, WATCHED, NOBODY, length)
    assert not others.suffice(length, FORWARD, 0.008)


def test_a_token_of_a_draft_takes_a_call_at_least_and_a_forward_at_most() -> None:
    assert token_seconds(0.040, 0.005, 0.0) == pytest.approx(0.040)
    assert token_seconds(0.040, 0.005, 1.0) == pytest.approx((0.040 + 32 * 0.005) / 33)
    assert 0.005 < token_seconds(0.040, 0.005, 0.9) < 0.040
