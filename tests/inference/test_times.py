"""Times of forward passes: samples, priors, and tables in files."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from inference.times import LATEST, REMEMBERED, TRUSTED, Shape, Times
from inference.times_file import PROFILES, Profile, StoredTimes, find_profile, profile_names
from tests.support.refusals import assert_refused

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
    assert times.seconds(4, 64) == times.seconds(8, 32) == pytest.approx(0.160)  # several calls
    assert Times({(1, 8): 0.031, (1, 16): 0.030}).seconds(1, 4) == 0.030


def test_a_target_slower_than_its_profile_is_so_at_every_shape_and_is_believed_to_recover() -> None:
    times, trusted = Times(PROFILE), Times({(1, 1): 0.1, (1, 4): 0.3}, measured=True)
    for factor in (2.0, 1.0, 0.5):
        for _ in range(10):
            times.observe(1, 5, factor * 0.030)
            trusted.observe(1, 1, factor * 0.1)
        assert times.seconds(1, 5) == times.seconds(1, 8) == pytest.approx(factor * 0.030)
        assert times.seconds(1, 32) == pytest.approx(factor * 0.040)
        assert trusted.seconds(1, 4) == pytest.approx(factor * 0.3)  # not called meanwhile


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
        unmeasured = [nodes for nodes in range(1, 65) if len(times.samples(1, nodes)) < 3]
        seconds = [times.seconds(1, nodes) for nodes in unmeasured]
        assert seconds == sorted(seconds)


def test_what_was_not_seen_for_two_thousand_calls_counts_as_never_measured() -> None:
    times = Times()
    times.trust({(1, 1): 0.03, (1, 32): 0.4})
    for _ in range(REMEMBERED + 4):
        times.observe(1, 1, 0.03)
    assert not times.samples(1, 32)
    assert times.cost(1, 32).maximum == math.inf


def test_a_time_from_elsewhere_gives_way_to_the_first_sample_that_differs() -> None:
    for seconds, samples in ((0.3, 1), (0.03, 1), (0.11, 4), (0.09, 4)):
        times = Times()
        times.trust({(1, 1): 0.1})
        times.observe(1, 1, seconds)
        assert len(times.samples(1, 1)) == samples
        assert times.seconds(1, 1) == pytest.approx(seconds, abs=0.01)


def test_samples_are_believed_but_for_one_that_was_disturbed() -> None:
    for pair in ((0.011, 0.200), (0.200, 0.011)):
        times = Times()
        for seconds in pair:
            times.observe(1, 8, seconds)
        assert times.cost(1, 8) == (0.011, 0.200)  # of few samples the slowest is the bound
    times.observe(1, 8, 0.011)
    assert times.cost(1, 8) == pytest.approx((0.011, 0.011))
    times = Times(PROFILE)
    for seconds in (0.031, 0.030, 0.900, 0.030):
        times.observe(1, 8, seconds)
    assert times.seconds(1, 8) == pytest.approx(0.0305, abs=0.001)
    assert times.seconds(1, 32) == pytest.approx(0.0405, abs=0.001)
    for _ in range(LATEST):
        times.observe(1, 8, 0.1)
        times.observe(1, 8, 0.2)
    assert times.seconds(1, 8) == pytest.approx(0.15, rel=0.15)
    still = measured(((1, 1), 0.0), ((1, 2), 0.0))  # a clock that did not move is no error
    assert 0 < still.seconds(1, 1) < 1e-6


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


COMPUTED, MEASURED = "llama-3.1-8b-trn1.2xlarge-computed", "llama-3.1-8b-trn1.2xlarge-measured"
TRN2 = ("llama-3.1-8b-trn2.3xlarge-computed", "llama-3.1-8b-trn2.3xlarge-published")
CONDITIONS: dict[str, str | int] = {"device": "cpu", "model": "f0", "threads": 2, "rows": 4}
TABLE = {(1, 1): 0.011, (1, 64): 0.02, (4, 64): 0.1 + 0.2}


def test_a_call_takes_the_time_of_the_shape_it_is_padded_to_and_of_its_context() -> None:
    times = ((1, 1, 0.01), (1, 8, 0.02), (4, 1, 0.03), (4, 8, 0.05))
    profile = Profile("test", "a test", "nothing", times, slot_seconds=1e-6)
    assert (profile.padded(2, 3), profile.padded(5, 9)) == ((4, 8), (8, 16))
    assert profile.seconds(1, 1, 0) == 0.01
    assert profile.seconds(2, 3, 100) == pytest.approx(0.05 + 4 * 100 * 1e-6)
    assert profile.seconds(5, 9, 0) == pytest.approx(4 * 0.05)
    assert profile.slower(3).seconds(2, 3, 100) == pytest.approx(3 * profile.seconds(2, 3, 100))
    assert profile.table(100)[4, 1] == pytest.approx(0.03 + 4 * 100 * 1e-6)
    gaps = Profile("t", "s", "a", ((1, 1, 0.03), (1, 16, 0.04), (4, 16, 0.06), (1, 256, 0.2)))
    assert 0.03 < gaps.seconds(4, 1, 0) < 0.04
    assert gaps.seconds(3, 200, 0) == gaps.table(0)[4, 256] > 0.2


def test_more_rows_nodes_or_context_never_cost_less() -> None:
    sizes = (1, 3, 4, 5, 63, 64, 65, 130), (1, 2, 8, 9, 64, 65, 256, 257), (0, 1, 256, 257, 4000)
    for profile, (rows, nodes, context) in product(
        map(find_profile, profile_names()), product(*sizes)
    ):
        assert profile.seconds(rows, nodes, context) <= min(
            profile.seconds(rows + 1, nodes, context),
            profile.seconds(rows, nodes + 1, context),
            profile.seconds(rows, nodes, context + 1),
        )


def test_the_bundled_profiles_say_what_they_are() -> None:
    """AWS published 25.6 ms for one token of trn2."""
    assert profile_names() == [COMPUTED, MEASURED, *TRN2]
    assert_refused(lambda: find_profile("trn9"), [f"{COMPUTED}, {MEASURED}"])
    computed, measured, _, published = map(find_profile, profile_names())
    assert "not yet run on hardware" in computed.source
    assert "27.24 tokens/s" in measured.source
    assert 1 / measured.seconds(1, 1, 0) == pytest.approx(27.24, rel=1e-3)
    assert published.seconds(1, 1, 2048) == pytest.approx(25.6e-3, rel=0.03)


def test_a_profile_of_the_users_own_is_checked(tmp_path: Path) -> None:
    raw = json.loads((PROFILES / f"{MEASURED}.json").read_text())
    own = tmp_path / "own.json"
    own.write_text(json.dumps(raw))
    assert find_profile(str(own)) == find_profile(MEASURED)
    wrong: list[tuple[str, object]] = [("times", []), ("times", [[1, 1, 0]])]
    wrong += [("times", [[0, 1, 0.5]]), ("slot_seconds", -1), ("name", ""), ("speed", 2)]
    for field, value in wrong:
        own.write_text(json.dumps(raw | {field: value}))
        assert_refused(lambda: find_profile(str(own)), [field])


def test_stored_times_are_read_back_under_their_conditions_and_can_be_emulated(
    tmp_path: Path,
) -> None:
    lines = list[str]()
    stored = StoredTimes(tmp_path / "profiles", "target", "a target", CONDITIONS)
    assert stored.load(lines.append) is None
    assert stored.store(TABLE)
    assert stored.load(lines.append) == TABLE
    assert list(stored.directory.iterdir()) == [stored.path]
    for field in (*CONDITIONS, "another"):
        other = stored._replace(conditions=CONDITIONS | {field: "x"})
        assert other.load(lines.append) is None, field
    assert stored._replace(kind="draft").load(lines.append) is None
    assert not lines
    emulated = find_profile(str(stored.path))
    assert emulated.seconds(3, 20, 256) == TABLE[4, 64]
    assert not stored._replace(directory=stored.path).store(TABLE)  # a file is in the way
