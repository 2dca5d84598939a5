"""Times are what was measured lately: profiles are followed up and down."""

from __future__ import annotations

import math

import numpy as np
import pytest

from inference.times import LATEST, REMEMBERED, TRUSTED, Cost, Shape, Times

PROFILE = {(1, 8): 0.030, (1, 32): 0.040, (4, 8): 0.050, (4, 32): 0.080}


def measured(*samples: tuple[Shape, float], prior: dict[Shape, float] | None = None) -> Times:
    """Times with enough samples of each shape."""
    times = Times(prior)
    for shape, seconds in samples * TRUSTED:
        times.observe(*shape, seconds)
    return times


def test_a_forward_costs_what_the_cheapest_profiled_shape_that_holds_it_costs() -> None:
    times = Times(PROFILE)
    assert [times.seconds(1, nodes) for nodes in (1, 8, 9, 32)] == [0.030, 0.030, 0.040, 0.040]
    assert [times.seconds(rows, 8) for rows in (1, 2, 4)] == [0.030, 0.050, 0.050]


def test_a_larger_shape_that_was_measured_as_cheaper_holds_the_smaller_one_too() -> None:
    assert Times({(1, 8): 0.031, (1, 16): 0.030}).seconds(1, 4) == 0.030


def test_a_forward_beyond_the_profile_takes_several_of_the_largest() -> None:
    times = Times(PROFILE)
    assert times.seconds(4, 64) == times.seconds(8, 32) == pytest.approx(0.160)


def test_a_target_slower_than_its_profile_is_so_at_every_shape_and_is_believed_to_recover() -> None:
    times = Times(PROFILE)
    for factor in (2.0, 1.0, 0.5):
        for _ in range(10):
            times.observe(1, 5, factor * 0.030)
        assert times.seconds(1, 5) == times.seconds(1, 8) == pytest.approx(factor * 0.030)
        assert times.seconds(1, 32) == pytest.approx(factor * 0.040)


@pytest.mark.parametrize("seen", [4, 8], ids=["the shape itself", "a wider one"])
def test_a_hiccup_is_forgotten_once_the_shape_or_a_wider_one_is_seen_quicker(seen: int) -> None:
    times = Times()
    for _ in range(3):
        times.observe(1, 1, 0.10)
    times.observe(1, 4, 5.0)
    times.observe(1, seen, 0.12)
    assert times.seconds(1, 4) <= 0.12


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_samples_the_slower_one_bounds_a_shape(order: int) -> None:
    times = Times()
    for seconds in (0.011, 0.200)[::order]:
        times.observe(1, 8, seconds)
    assert times.seconds(1, 8) == 0.011
    assert times.cost(1, 8).maximum == 0.200


def test_nothing_bounds_what_more_than_twice_the_measured_nodes_take() -> None:
    times = Times({(1, 1): 0.1, (1, 4): 0.1}, measured=True)
    assert times.cost(1, 4).maximum == times.seconds(1, 4) == 0.1
    assert times.cost(1, 8).maximum == pytest.approx(0.2)
    assert times.cost(1, 9).maximum == math.inf


def test_time_never_falls_with_more_nodes_whatever_was_measured() -> None:
    rng = np.random.default_rng(8)
    for _ in range(50):
        times = Times()
        for _ in range(rng.integers(3, 30)):
            times.observe(1, int(rng.integers(1, 65)), float(rng.exponential(0.1)))
        unmeasured = [nodes for nodes in range(1, 65) if times.samples(1, nodes) < 3]
        seconds = [times.seconds(1, nodes) for nodes in unmeasured]
        assert seconds == sorted(seconds)


def test_what_was_not_seen_for_two_thousand_calls_counts_as_never_measured() -> None:
    times = Times()
    times.trust({(1, 1): 0.03, (1, 32): 0.4})
    for _ in range(REMEMBERED + 4):
        times.observe(1, 1, 0.03)
    assert times.samples(1, 32) == 0
    assert times.cost(1, 32).maximum == math.inf


def test_a_profile_that_is_wrong_about_wide_calls_gives_way_to_two_measured_ones() -> None:
    times = Times({(1, 1): 0.1, (1, 2): 0.1, (1, 16): 0.1, (1, 32): 0.1})
    times.trust({(1, 1): 0.1, (1, 16): 0.2})
    assert times.seconds(1, 8) == pytest.approx(0.1 + 0.1 * 7 / 15)
    assert times.seconds(1, 32) > 0.3


def test_a_machine_that_slows_down_slows_down_shapes_that_are_not_called_meanwhile() -> None:
    times = Times({(1, 1): 0.1, (1, 4): 0.3}, measured=True)
    for factor in (2.0, 1.0):
        for _ in range(LATEST):
            times.observe(1, 1, factor * 0.1)
        assert times.seconds(1, 4) == pytest.approx(factor * 0.3)


def test_one_disturbed_forward_is_not_believed() -> None:
    times = Times(PROFILE)
    for seconds in (0.031, 0.030, 0.900, 0.030):
        times.observe(1, 8, seconds)
    assert times.seconds(1, 8) == pytest.approx(0.0305, abs=0.001)
    assert times.seconds(1, 32) == pytest.approx(0.0405, abs=0.001)


def test_a_shape_that_is_slow_every_other_time_takes_the_mean() -> None:
    times = Times()
    for _ in range(LATEST):
        times.observe(1, 8, 0.1)
        times.observe(1, 8, 0.2)
    assert times.seconds(1, 8) == pytest.approx(0.15, rel=0.15)


def test_a_time_from_elsewhere_gives_way_to_the_first_sample_that_differs() -> None:
    for seconds, samples in ((0.3, 1), (0.03, 1), (0.11, 4), (0.09, 4)):
        times = Times()
        times.trust({(1, 1): 0.1})
        times.observe(1, 1, seconds)
        assert times.samples(1, 1) == samples
        assert times.seconds(1, 1) == pytest.approx(seconds, abs=0.01)


def test_enough_samples_are_believed_and_a_clock_that_stood_still_is_no_error() -> None:
    times = Times()
    for seconds in (0.1, 0.1, 0.2):
        times.observe(1, 1, seconds)
    assert times.cost(1, 1) == Cost(pytest.approx(0.1), pytest.approx(0.1))
    assert 0 < measured(((1, 1), 0.0), ((1, 2), 0.0)).seconds(1, 1) < 1e-6


def test_a_trial_is_hoped_to_take_no_longer_than_a_narrower_call_but_by_a_right_profile() -> None:
    narrow = ((1, 1), 0.1), ((1, 2), 0.2)
    assert measured(*narrow).cost(1, 4).expected == pytest.approx(0.4)
    assert measured(*narrow).hope(1, 4) == pytest.approx((0.2, 0.4))
    prior = {(1, nodes): 0.1 * nodes for nodes in (1, 2, 4, 8)}
    assert measured(*narrow, prior=prior).hope(1, 4) == pytest.approx((0.4, 0.4))
    between = measured(*narrow, ((1, 8), 0.8), prior=prior)
    assert between.cost(1, 4) == between.hope(1, 4) == pytest.approx((0.4, 1.2 * 0.4))


def test_a_call_narrower_than_all_measured_ones_takes_its_part_of_them_by_the_profile() -> None:
    wide = measured(((1, 32), 0.080), prior=PROFILE)
    assert wide.cost(1, 8) == pytest.approx((0.060, 0.080))
    falling = measured(((1, 64), 0.080), prior={(4, 8): 0.100, (1, 64): 0.050})
    assert falling.seconds(4, 8) == pytest.approx(0.080)
    assert measured(((1, 32), 0.080)).seconds(1, 8) == pytest.approx(0.080)


def test_a_wide_call_takes_no_less_than_a_narrower_one() -> None:
    sure = measured(((1, 1), 0.3), ((1, 2), 0.1), ((1, 8), 0.2))
    assert sure.seconds(1, 4) == pytest.approx(0.3)
    times = measured(((1, 2), 0.1))
    times.observe(1, 1, 0.3)
    assert times.seconds(1, 4) == pytest.approx(0.3)
    times.observe(1, 8, 0.2)
    assert times.seconds(1, 4) == pytest.approx(0.2)
