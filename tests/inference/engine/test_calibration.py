"""What an engine learns of proposers: how often they are right, and whether others suffice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.calibration import HIGHEST, Calibration
from inference.engine.colocated.arbitration import (
    LEFT_ALONE,
    WATCHED,
    ProposerArbitration,
    token_seconds,
)
from inference.engine.tuning import TUNING
from inference.proposer import COLOCATED, MODEL, NOBODY


def observe(
    record: Calibration, claimed: float, taken: bool, depth: int = 1, proposer: int = 0
) -> None:
    """Record a claim for one child, and whether the target took it."""
    record.observe([int(taken)] * depth, [{}] * (depth - 1) + [{proposer: {1: claimed}}])


def after(claimed: float, taken: float, times: int = 400, depth: int = 1) -> Calibration:
    """A record of so many claims, of which a share came true, evenly spread."""
    record = Calibration()
    for index in range(times):
        came = int((index + 1) * taken) > int(index * taken)
        observe(record, claimed, came, depth=depth)
    return record


def test_a_claim_is_believed_as_far_as_such_claims_came_true() -> None:
    assert Calibration().trusted(0, 1, 0.5) == pytest.approx(TUNING.caution * 0.5)
    assert after(1.0, 0.0, times=10).trusted(0, 1, 1.0) < 0.4
    assert after(1.0, 0.0).trusted(0, 1, 1.0) < 0.05
    for chance in (0.2, 0.5, 0.9):
        assert after(chance, chance).factor(0, 1) == pytest.approx(1.0, abs=0.05)
    assert after(0.8, 0.4).trusted(0, 1, 0.8) == pytest.approx(0.4, abs=0.03)
    assert after(0.1, 0.9).factor(0, 1) == TUNING.max_trust


def test_kinds_of_proposers_and_depths_have_records_of_their_own() -> None:
    record = after(1.0, 0.0, depth=8)
    assert record.trusted(0, 20, 1.0) < 0.05  # as deep as 8 or deeper
    assert record.factor(0, 7) == record.factor(1, 8) == TUNING.caution


def test_a_record_fades_by_the_children_that_were_named_and_not_by_messages() -> None:
    many, one = after(1.0, 0.0), after(1.0, 0.0)
    many.observe([0], [{0: dict.fromkeys(range(5000), 1 / 5000)}])
    observe(one, 1.0, True)
    assert many.factor(0, 1) == pytest.approx(
        (TUNING.caution * TUNING.caution_weight + 1) / (TUNING.caution_weight + 1), abs=0.01
    )
    assert one.factor(0, 1) < 0.05
    for _ in range(1200):
        observe(one, 1.0, True)
    assert one.factor(0, 1) > 0.95


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), st.floats(0, 1), st.booleans())),
    st.floats(0, 1),
)
def test_a_trusted_chance_is_a_chance_and_never_certain(
    seen: list[tuple[int, int, float, bool]], claimed: float
) -> None:
    record = Calibration()
    for proposer, depth, claim, taken in seen:
        observe(record, claim, taken, depth=depth, proposer=proposer)
    for depth in (1, 3, 9):
        assert 0 <= record.trusted(0, depth, claimed) <= HIGHEST


FORWARD = 0.040


def told(
    others: ProposerArbitration, tokens: int, forwards: int, kind: int = MODEL, length: int = 0
) -> int:
    """So many forwards bring so many tokens each; the length that the text has then."""
    for _ in range(forwards):
        length += tokens
        others.observe(length, [kind] * (tokens - 1) + [NOBODY], 1)
    return length


def test_a_draft_is_silent_while_others_are_quicker_and_comes_back_when_they_stop() -> None:
    others = ProposerArbitration()
    assert not others.suffice(told(others, 5, 20, COLOCATED), FORWARD, 1.0)
    others = ProposerArbitration()
    length = told(others, 8, 1)
    for _ in range(30):
        length = told(others, 8, 1, length=length)
        assert others.suffice(length, FORWARD, 0.006)
    length = told(others, 1, WATCHED, NOBODY, length)
    assert not others.suffice(length, FORWARD, 0.006)


def test_a_draft_goes_on_when_others_are_slower_and_looks_again_after_a_while() -> None:
    others = ProposerArbitration()
    length = told(others, 3, 2 + WATCHED)
    assert not others.suffice(length, FORWARD, 0.008)
    again = length + LEFT_ALONE
    while length < again:
        assert not others.suffice(length, FORWARD, 0.008)
        length = told(others, 3, 1, length=length)
    assert others.suffice(length, FORWARD, 0.008)


def test_a_token_of_a_draft_takes_a_call_at_least_and_a_forward_at_most() -> None:
    assert token_seconds(0.040, 0.005, 0.0) == pytest.approx(0.040)
    assert token_seconds(0.040, 0.005, 1.0) == pytest.approx((0.040 + 32 * 0.005) / 33)
    assert 0.005 < token_seconds(0.040, 0.005, 0.9) < 0.040
