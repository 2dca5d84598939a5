"""Times in files: profiles that a target emulates, and times that are measured once."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from inference.times_file import PROFILES, Profile, StoredTimes, find_profile, profile_names
from tests.support.refusals import assert_refused

COMPUTED, MEASURED = "llama-3.1-8b-trn1.2xlarge-computed", "llama-3.1-8b-trn1.2xlarge-measured"
TRN2 = ("llama-3.1-8b-trn2.3xlarge-computed", "llama-3.1-8b-trn2.3xlarge-published")
CONDITIONS: dict[str, str | int] = {"device": "cpu", "model": "f0", "threads": 2, "rows": 4}
TABLE = {(1, 1): 0.011, (1, 64): 0.02, (4, 64): 0.1 + 0.2}


def ignored(line: str) -> None:
    """Progress."""


def stored_in(directory: Path) -> StoredTimes:
    return StoredTimes(directory, "target", "a target", CONDITIONS)


def test_a_call_takes_the_time_of_the_shape_it_is_padded_to_and_of_its_context() -> None:
    times = ((1, 1, 0.01), (1, 8, 0.02), (4, 1, 0.03), (4, 8, 0.05))
    profile = Profile("test", "a test", "nothing", times, slot_seconds=1e-6)
    assert (profile.padded(2, 3), profile.padded(5, 9)) == ((4, 8), (8, 16))
    assert profile.seconds(1, 1, 0) == 0.01
    assert profile.seconds(2, 3, 100) == pytest.approx(0.05 + 4 * 100 * 1e-6)
    assert profile.seconds(5, 9, 0) == pytest.approx(4 * 0.05)
    assert profile.slower(3).seconds(2, 3, 100) == pytest.approx(3 * profile.seconds(2, 3, 100))
    assert profile.table(100)[4, 1] == pytest.approx(0.03 + 4 * 100 * 1e-6)


def test_a_profile_of_many_shapes_has_the_seconds_of_each() -> None:
    sizes = range(1, 33)
    times = tuple((rows, nodes, rows + nodes / 64) for rows in sizes for nodes in sizes)
    profile = Profile("test", "a test", "nothing", times)
    assert [profile.seconds(1, nodes, 0) for nodes in (1, 32)] == [1 + 1 / 64, 1.5]


@pytest.mark.parametrize("name", [COMPUTED, MEASURED, *TRN2])
def test_more_rows_nodes_or_context_never_cost_less(name: str) -> None:
    one = find_profile(name)
    for rows, nodes, context in product(
        (1, 3, 4, 5, 63, 64, 65, 130), (1, 2, 8, 9, 64, 65, 256, 257), (0, 1, 256, 257, 4000)
    ):
        assert one.seconds(rows, nodes, context) <= min(
            one.seconds(rows + 1, nodes, context),
            one.seconds(rows, nodes + 1, context),
            one.seconds(rows, nodes, context + 1),
        )


def test_the_bundled_profiles_are_the_computed_pass_and_the_measured_one() -> None:
    assert profile_names() == [COMPUTED, MEASURED, *TRN2]
    computed, measured = find_profile(COMPUTED), find_profile(MEASURED)
    assert (computed.name, measured.name) == (COMPUTED, MEASURED)
    assert 1 / measured.seconds(1, 1, 0) == pytest.approx(27.24, rel=1e-3)
    assert "27.24 tokens/s" in measured.source
    assert "not yet run on hardware" in computed.source


def test_the_two_profiles_of_trn2_are_aws_published_pass_and_the_computed_one() -> None:
    """25.6 ms for one token, 26.2 for four; half of the former as computed."""
    computed, published = (find_profile(name) for name in TRN2)
    assert published.seconds(1, 1, 2048) == pytest.approx(25.6e-3, rel=0.03)
    more = published.seconds(1, 16, 0) - published.seconds(1, 8, 0)
    assert more / 8 == pytest.approx(0.2e-3, rel=0.05)
    assert computed.seconds(1, 1, 2048) < 0.5 * published.seconds(1, 1, 2048)
    assert "1.2 ms a node" in published.assumes


def test_an_unknown_profile_is_answered_with_the_bundled_ones() -> None:
    assert_refused(lambda: find_profile("trn9"), [f"{COMPUTED}, {MEASURED}"])


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"times": []}, "times"),
        ({"times": [[1, 1, 0]]}, "times"),
        ({"times": [[1, 1, float("nan")]]}, "times"),
        ({"times": [[0, 1, 0.5]]}, "times"),
        ({"slot_seconds": -1}, "slot_seconds"),
        ({"name": ""}, "name"),
        ({"speed": 2}, "speed"),
    ],
)
def test_a_profile_of_the_users_own_is_checked(
    change: dict[str, object], shown: str, tmp_path: Path
) -> None:
    raw = json.loads((PROFILES / f"{MEASURED}.json").read_text())
    own = tmp_path / "own.json"
    own.write_text(json.dumps(raw))
    assert find_profile(str(own)) == find_profile(MEASURED)
    own.write_text(json.dumps(raw | change))
    assert_refused(lambda: find_profile(str(own)), [shown])


def test_stored_times_are_read_back_as_they_were_and_can_be_emulated(tmp_path: Path) -> None:
    told: list[str] = []
    stored = stored_in(tmp_path / "profiles")
    assert stored.load(told.append) is None
    assert stored.store(TABLE)
    assert stored.load(told.append) == TABLE
    assert list(stored.directory.iterdir()) == [stored.path]
    assert not told
    emulated = find_profile(str(stored.path))
    assert emulated.seconds(3, 20, 256) == TABLE[4, 64]


def test_a_pair_of_sizes_that_was_not_measured_lies_between_the_others() -> None:
    profile = Profile("t", "s", "a", ((1, 1, 0.03), (1, 16, 0.04), (4, 16, 0.06), (1, 256, 0.2)))
    assert 0.03 < profile.seconds(4, 1, 0) < 0.04
    assert profile.seconds(3, 200, 0) == profile.table(0)[4, 256] > 0.2


@pytest.mark.parametrize("changed", [*CONDITIONS, "kind", "another"])
def test_stored_times_serve_nothing_but_their_conditions(tmp_path: Path, changed: str) -> None:
    stored_in(tmp_path).store(TABLE)
    other = StoredTimes(tmp_path, "target", "a target", CONDITIONS | {changed: "x"})
    if changed == "kind":
        other = stored_in(tmp_path)._replace(kind="draft")
    assert other.load(ignored) is None


def test_where_nothing_can_be_written_nothing_is_stored(tmp_path: Path) -> None:
    (tmp_path / "profiles").write_text("a file where the directory would be", encoding="utf-8")
    assert not stored_in(tmp_path / "profiles").store(TABLE)
