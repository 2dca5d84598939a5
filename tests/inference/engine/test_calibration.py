"""A claim is worth less than it says until there is a record, and then what the record says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.calibration import HIGHEST, Calibration
from inference.engine.tuning import TUNING


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


def test_a_stranger_is_believed_in_part() -> None:
    assert Calibration().trusted(0, 1, 0.5) == pytest.approx(TUNING.caution * 0.5)


def test_who_claims_certainty_and_is_always_wrong_is_soon_hardly_believed() -> None:
    assert after(1.0, 0.0, times=10).trusted(0, 1, 1.0) < 0.4
    assert after(1.0, 0.0).trusted(0, 1, 1.0) < 0.05


@pytest.mark.parametrize("chance", [0.2, 0.5, 0.9])
def test_who_is_right_as_often_as_claimed_is_believed(chance: float) -> None:
    assert after(chance, chance).factor(0, 1) == pytest.approx(1.0, abs=0.05)


def test_who_claims_twice_too_much_is_believed_half() -> None:
    assert after(0.8, 0.4).trusted(0, 1, 0.8) == pytest.approx(0.4, abs=0.03)


def test_modesty_is_made_up_for_within_a_bound() -> None:
    assert after(0.1, 0.9).factor(0, 1) == TUNING.max_trust


def test_kinds_of_proposers_and_depths_have_records_of_their_own() -> None:
    record = after(1.0, 0.0, depth=8)
    assert record.trusted(0, 20, 1.0) < 0.05  # as deep as 8 or deeper
    assert record.factor(0, 7) == record.factor(1, 8) == TUNING.caution


def test_a_record_fades() -> None:
    record = after(1.0, 0.0)
    for _ in range(1200):
        observe(record, 1.0, True)
    assert record.factor(0, 1) > 0.95


def test_a_record_fades_by_the_children_that_were_named_and_not_by_messages() -> None:
    many, one = after(1.0, 0.0), after(1.0, 0.0)
    many.observe([0], [{0: dict.fromkeys(range(5000), 1 / 5000)}])
    observe(one, 1.0, True)
    assert many.factor(0, 1) == pytest.approx(
        (TUNING.caution * TUNING.caution_weight + 1) / (TUNING.caution_weight + 1), abs=0.01
    )
    assert one.factor(0, 1) < 0.05


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
