"""The closed forms give the figures of the literature, and keep what follows from them."""

from __future__ import annotations

from math import isclose

import pytest

from outrider.compare.prediction import (
    Round,
    best_chain,
    break_even_round_trip,
    capacity_over_alone,
    expected_chain_tokens,
    least_time,
    time_per_token,
)

ACCEPTANCES = (0.5, 0.7, 0.85, 0.9)


@pytest.mark.parametrize(
    ("alone", "windows"),
    [
        (100, (47, 144, 265, 319)),
        (50, (None, 47, 108, 134)),
        (30, (None, 8, 45, 61)),
        (20, (None, None, 13, 24)),
    ],
)
def test_the_break_even_round_trips_are_those_of_speculation_at_a_distance(
    alone: float, windows: tuple[float | None, ...]
) -> None:
    """Table III of arXiv 2606.25091: chains of 5, 10 ms a drafted token; None where distributing
    loses on loopback, too.
    """
    for acceptance, window in zip(ACCEPTANCES, windows, strict=True):
        found = break_even_round_trip(
            alone, Round(5 * 10, alone, expected_chain_tokens(5, acceptance))
        )
        assert found < 0 if window is None else abs(found - window) < 1


@pytest.mark.parametrize(
    ("alone", "windows"),
    [
        (100, (57, 146, 368, 592)),
        (50, (17, 49, 128, 207)),
        (30, (5, 16, 46, 76)),
        (20, (0, 4, 14, 24)),
    ],
)
def test_a_chain_of_the_best_length_widens_the_window(
    alone: float, windows: tuple[float, ...]
) -> None:
    for acceptance, window in zip(ACCEPTANCES, windows, strict=True):
        found = max(
            break_even_round_trip(
                alone, Round(length * 10, alone, expected_chain_tokens(length, acceptance))
            )
            for length in range(1, 40)
        )
        assert abs(found - window) < 1


@pytest.mark.parametrize(
    ("acceptance", "lengths"), [(0.7, (2, 3, 3, 4, 5, 7)), (0.9, (4, 6, 8, 10, 13, 16))]
)
def test_the_best_chain_grows_slowly_with_the_round_trip(
    acceptance: float, lengths: tuple[int, ...]
) -> None:
    """10 ms a drafted token, half a millisecond to verify one, 30 ms a pass (reference notes,
    4.2).
    """
    found = [
        best_chain(acceptance, lambda length, trip=trip: 10.5 * length + 30 + trip).length
        for trip in (0, 20, 40, 80, 160, 320)
    ]
    assert found == list(lengths)


@pytest.mark.parametrize(
    ("acceptance", "times"),
    [(0.735, (24.2, 29.9, 37.1, 50.3, 74.9, 115.9)), (0.818, (21.4, 25.8, 31.2, 41.0, 58.8, 87.9))],
)
def test_the_best_chains_times_are_those_of_the_joint_optimum(
    acceptance: float, times: tuple[float, ...]
) -> None:
    """10 ms a level, 30 + 0.1 N ms a pass (reference notes, 4.4); the acceptance is a rounded
    one, so within 1 %.
    """
    for trip, time in zip((5, 20, 40, 80, 160, 300), times, strict=True):
        found = best_chain(
            acceptance, lambda length, trip=trip: 10 * length + 30 + 0.1 * length + trip
        ).time
        assert isclose(found, time, rel_tol=0.01)


def test_a_token_takes_longer_at_every_distance() -> None:
    made = Round(drafting=50, verify=30, tokens=4)
    assert [time_per_token(made, trip) for trip in (0, 20, 300)] == [20, 25, 95]


def test_nothing_is_faster_than_the_misses_it_has_to_wait_for() -> None:
    assert isclose(least_time(0.25, round_trip=80, verify=30), 27.5)


def test_a_target_that_does_not_draft_serves_more() -> None:
    assert capacity_over_alone(tokens=3.9, alone=30, verify=39) == 3


def test_a_chain_brings_the_targets_own_token_too() -> None:
    assert expected_chain_tokens(0, 0.9) == 1.0
    assert expected_chain_tokens(4, 1.0) == 5.0
    assert expected_chain_tokens(3, 0.5) == 1.875


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="own token"):
        Round(1, 1, 0.5)
    with pytest.raises(ValueError, match="0 or more"):
        Round(-1, 1, 2)
    with pytest.raises(ValueError, match="probability"):
        least_time(1.5, 1, 1)
    with pytest.raises(ValueError, match="acceptance"):
        expected_chain_tokens(2, 1.1)
