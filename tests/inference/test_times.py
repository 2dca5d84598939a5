"""Times are what was measured lately: profiles are followed up and down, a link is told apart
from what the target does.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from inference.link_times import NOTHING, UNKNOWN, Estimate, LinkTimes, middle
from inference.times import REMEMBERED, DraftTimes, LatencyModel

PROFILE = {(1, 8): 0.030, (1, 32): 0.040, (4, 8): 0.050, (4, 32): 0.080}


def exchange(
    link: LinkTimes,
    rng: np.random.Generator,
    trip: float,
    *,
    size: int | None = None,
    byte: float = 0.0,
    jitter: float = 0.001,
) -> None:
    """One round over a link with jitter that only delays, to a target that was busy for any
    time.
    """
    transferred, at_target = size or int(rng.integers(100, 400)), float(rng.uniform(0.0, 0.1))
    link.observe(
        trip + byte * transferred + rng.exponential(jitter) + at_target, at_target, transferred
    )


def test_nothing_is_known_before_the_first_sample() -> None:
    link, draft, target = LinkTimes(), DraftTimes(), LatencyModel()
    assert [link.known, draft.known, target.known] == [False] * 3
    assert link.estimate(100) == UNKNOWN
    assert link.seconds(100) == draft.seconds(4) == target.seconds(1, 4) == 0.0


def test_the_target_s_own_time_is_no_part_of_the_link() -> None:
    link, rng = LinkTimes(), np.random.default_rng(1)
    for _ in range(20):
        exchange(link, rng, 0.040)
    assert link.known
    assert link.round_trip.seconds == pytest.approx(
        0.0407, abs=0.001
    )  # half of all jitter is below 0.7 ms
    assert 0 < link.round_trip.spread < 0.001


def test_a_link_without_delay_is_seen_as_one() -> None:
    link = LinkTimes()
    for _ in range(5):
        link.observe(0.02, 0.02, 150)
    link.observe(0.0199, 0.02, 150)  # durations of two clocks
    assert link.round_trip == Estimate(0.0, 0.0)


def test_bytes_cost_nothing_while_jitter_explains_all_differences() -> None:
    link, rng = LinkTimes(), np.random.default_rng(2)
    told = 0
    for _ in range(500):
        exchange(link, rng, 0.020, jitter=0.004)
        told += link.byte_seconds != NOTHING
    assert told <= 5


def test_exchanges_of_one_size_tell_nothing_about_bytes() -> None:
    link, rng = LinkTimes(), np.random.default_rng(3)
    for _ in range(50):
        exchange(link, rng, 0.020, size=150, byte=1e-5)
    assert link.byte_seconds == NOTHING
    assert link.seconds(150) == pytest.approx(0.0222, abs=0.001)


def test_one_large_message_tells_nothing_about_bytes() -> None:
    link = LinkTimes()
    for _ in range(20):
        link.observe(0.020, 0.0, 150)
    link.observe(0.090, 0.0, 4_000)
    link.observe(0.020, 0.0, 150)
    assert link.byte_seconds == NOTHING


def test_a_slow_link_s_seconds_a_byte_are_told_from_trees_of_different_size() -> None:
    link, rng = LinkTimes(), np.random.default_rng(4)
    for _ in range(60):
        exchange(link, rng, 0.050, byte=1e-4, jitter=0.002)
    assert link.byte_seconds.seconds == pytest.approx(1e-4, rel=0.1)
    assert link.seconds(1_000) == pytest.approx(0.150, rel=0.1)
    assert link.estimate(1_000).spread > link.estimate(10).spread


def test_a_changed_link_is_followed_within_ten_rounds_there_and_back() -> None:
    link, rng = LinkTimes(), np.random.default_rng(5)
    for trip in (0.020, 0.200, 0.020):
        for _ in range(10 if trip > 0.1 else 30):
            exchange(link, rng, trip)
        assert link.round_trip.seconds == pytest.approx(trip, rel=0.1)
        assert link.byte_seconds == NOTHING


def test_while_a_link_changes_it_is_uncertain() -> None:
    link, rng = LinkTimes(), np.random.default_rng(6)
    for _ in range(30):
        exchange(link, rng, 0.020)
    calm = link.round_trip.spread
    for _ in range(6):
        exchange(link, rng, 0.200)
    assert link.round_trip.spread > 2 * calm


def test_a_forward_costs_what_the_cheapest_profiled_shape_that_holds_it_costs() -> None:
    times = LatencyModel(PROFILE)
    assert times.known
    assert [times.seconds(1, nodes) for nodes in (1, 8, 9, 32)] == [0.030, 0.030, 0.040, 0.040]
    assert [times.seconds(rows, 8) for rows in (1, 2, 4)] == [0.030, 0.050, 0.050]


def test_a_larger_shape_that_was_measured_as_cheaper_holds_the_smaller_one_too() -> None:
    assert LatencyModel({(1, 8): 0.031, (1, 16): 0.030}).seconds(1, 4) == 0.030


def test_a_forward_beyond_the_profile_takes_several_of_the_largest() -> None:
    times = LatencyModel(PROFILE)
    assert times.seconds(4, 64) == times.seconds(8, 32) == pytest.approx(0.160)


def test_a_target_slower_than_its_profile_is_so_at_every_shape_and_is_believed_to_recover() -> None:
    times = LatencyModel(PROFILE)
    for factor in (2.0, 1.0, 0.5):
        for _ in range(10):
            times.observe(1, 5, factor * 0.030)
        assert times.seconds(1, 5) == times.seconds(1, 8) == pytest.approx(factor * 0.030)
        assert times.seconds(1, 32) == pytest.approx(factor * 0.040)


def test_one_sample_is_believed_upwards_at_once_by_all_wider_shapes() -> None:
    times = LatencyModel()
    times.observe(1, 1, 0.1)
    times.observe(1, 4, 0.9)
    assert times.seconds(1, 4) == 0.9 < times.seconds(1, 8)
    assert times.most(1, 4) == 0.9


@pytest.mark.parametrize("seen", [4, 8], ids=["the shape itself", "a wider one"])
def test_a_hiccup_is_forgotten_once_the_shape_or_a_wider_one_is_seen_quicker(seen: int) -> None:
    times = LatencyModel()
    for _ in range(3):
        times.observe(1, 1, 0.10)
    times.observe(1, 4, 5.0)
    times.observe(1, seen, 0.12)
    assert times.seconds(1, 4) <= 0.12


def test_nothing_bounds_what_more_than_twice_the_measured_nodes_take() -> None:
    times = LatencyModel({(1, 1): 0.1, (1, 4): 0.1}, measured=True)
    assert times.most(1, 4) == times.seconds(1, 4) == 0.1
    assert times.most(1, 8) == pytest.approx(0.2)
    assert times.most(1, 9) == math.inf


def test_a_wide_call_that_was_measured_bounds_all_narrower_ones() -> None:
    times = LatencyModel()
    times.trust({(1, 1): 0.1, (1, 16): 0.3})
    assert all(0.1 <= times.seconds(1, nodes) <= 0.3 for nodes in range(2, 16))
    assert times.most(1, 12) == 0.3


def test_time_never_falls_with_more_nodes_whatever_was_measured() -> None:
    rng = np.random.default_rng(8)
    for _ in range(50):
        times = LatencyModel()
        for _ in range(rng.integers(3, 30)):
            times.observe(1, int(rng.integers(1, 65)), float(rng.exponential(0.1)))
        unmeasured = [nodes for nodes in range(1, 65) if times.samples(1, nodes) < 3]
        seconds = [times.seconds(1, nodes) for nodes in unmeasured]
        assert seconds == sorted(seconds)


def test_what_was_not_seen_for_two_thousand_calls_counts_as_never_measured() -> None:
    times = LatencyModel()
    times.trust({(1, 1): 0.03, (1, 32): 0.4})
    for _ in range(REMEMBERED + 4):
        times.observe(1, 1, 0.03)
    assert times.samples(1, 32) == 0
    assert times.most(1, 32) == math.inf


def test_a_profile_that_is_wrong_about_wide_calls_gives_way_to_two_measured_ones() -> None:
    times = LatencyModel({(1, 1): 0.1, (1, 2): 0.1, (1, 16): 0.1, (1, 32): 0.1})
    times.trust({(1, 1): 0.1, (1, 16): 1.6})
    assert times.seconds(1, 8) == pytest.approx(0.8)
    assert times.seconds(1, 32) > 1.6


def test_one_disturbed_forward_is_not_believed() -> None:
    times = LatencyModel(PROFILE)
    for seconds in (0.031, 0.030, 0.900, 0.030):
        times.observe(1, 8, seconds)
    assert times.seconds(1, 8) == pytest.approx(0.0305, abs=0.001)
    assert times.seconds(1, 32) == pytest.approx(0.0405, abs=0.001)


def test_an_undescribed_target_is_learned_from_its_answers() -> None:
    times = LatencyModel()
    for nodes in (4, 8, 4, 8, 4, 8):
        times.observe(1, nodes, 0.020 + 0.001 * nodes)
    assert times.seconds(1, 4) == pytest.approx(0.024)
    assert times.seconds(1, 16) == pytest.approx(0.036)
    assert times.most(1, 32) > times.seconds(1, 32)


def test_a_draft_call_lies_between_the_profiled_widths_next_to_it() -> None:
    times = DraftTimes({1: 0.010, 8: 0.017, 16: 0.033})
    assert [times.seconds(width) for width in (1, 4, 8, 12, 24)] == pytest.approx(
        [0.010, 0.013, 0.017, 0.025, 0.049]
    )


def test_a_draft_on_a_busy_machine_is_followed_up_and_down() -> None:
    times = DraftTimes({1: 0.010, 16: 0.020})
    for factor in (3.0, 1.0):
        for width in (1, 2, 4, 16) * 5:
            times.observe(width, factor * (0.010 + 0.010 * (width - 1) / 15))
        assert times.seconds(1) == pytest.approx(factor * 0.010)
        assert times.seconds(12) == pytest.approx(factor * (0.010 + 0.010 * 11 / 15))


def test_spread_shrinks_with_samples_and_covers_the_truth_in_two_of_three_cases() -> None:
    rng = np.random.default_rng(7)
    few = [middle(rng.normal(1.0, 0.1, 5).tolist()) for _ in range(400)]
    many = [middle(rng.normal(1.0, 0.1, 15).tolist()) for _ in range(400)]
    assert np.mean([one.spread for one in many]) < np.mean([one.spread for one in few])
    assert 0.55 < np.mean([abs(one.seconds - 1.0) < one.spread for one in many]) < 0.8
    assert middle([0.02]).spread == pytest.approx(0.01)
