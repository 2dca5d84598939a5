"""The regret study's dozen on one short text: as fast as it was, by figures that add up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.times_file import find_profile
from tests.support.repository import run_module

pytestmark = pytest.mark.extended

LEAST_SPEED = {
    **{"20:useless:0": 0.98, "300:useless:0": 0.98},
    **{"0:mid:0": 2.6, "20:mid:0": 2.3, "80:mid:0": 1.74, "300:mid:0": 1.12},
    **{"20:mid:0.8": 2.3, "80:mid:0.8": 1.6, "20:misses:0": 1.99, "80:misses:0.8": 1.38},
    **{"20:mid:0:x0.25": 3.5, "40:mid:0.8:fast": 1.16},
}
"""Times as fast as target-only on one short text: some 6 % below what was measured."""

FORWARD = find_profile("llama-3.1-8b-trn1.2xlarge-measured").seconds(1, 1, 256)
"""Seconds of a forward of one node."""

Figures = dict[str, dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def dozen(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    """By cell and arm: what the only text's row holds."""
    file = tmp_path_factory.mktemp("regret") / "dozen.json"
    flags = ["--dozen", "--texts", "1", "--tokens", "64", "--json", str(file)]
    assert "Below 0.98 of target-only: in no cell" in run_module("benchmarks.regret", *flags)
    return {
        cell["setting"]: {
            arm: dict(zip(cell["columns"], rows[0], strict=True))
            for arm, rows in cell["arms"].items()
        }
        for cell in json.loads(file.read_text(encoding="utf-8"))
    }


def forward_of(cell: str) -> float:
    return FORWARD / 2 if cell.endswith(":fast") else FORWARD


@pytest.mark.parametrize("cell", LEAST_SPEED)
def test_a_cell_of_the_dozen_is_as_fast_as_it_was(dozen: Figures, cell: str) -> None:
    assert len(dozen) == len(LEAST_SPEED)
    alone, growing = (dozen[cell][arm] for arm in ("target-only", "growing"))
    speed = (alone["seconds"] / alone["tokens"]) / (growing["seconds"] / growing["tokens"])
    assert speed >= LEAST_SPEED[cell]


@pytest.mark.parametrize("cell", LEAST_SPEED)
def test_the_target_alone_streams_at_its_own_pace_over_any_link(dozen: Figures, cell: str) -> None:
    alone = dozen[cell]["target-only"]
    assert alone["seconds"] / alone["tokens"] == pytest.approx(forward_of(cell), rel=2e-3)
    assert (alone["forwards"], alone["nodes"]) == (alone["tokens"], alone["tokens"])
    assert alone["calls"] == alone["proposed"] == 0


@pytest.mark.parametrize("cell", LEAST_SPEED)
def test_forwards_of_a_drafted_text_take_their_time_and_nobody_waits_between(
    dozen: Figures, cell: str
) -> None:
    for arm in ("growing", "hybrid"):
        made = dozen[cell][arm]
        forwards, each = made["forwards"], forward_of(cell)
        assert (forwards - 1) * each < made["seconds"] < 1.25 * forwards * each


def test_a_text_takes_its_links_round_trip_once(dozen: Figures) -> None:
    near, far = (
        dozen[cell]["target-only"]["whole_seconds"] for cell in ("20:useless:0", "300:useless:0")
    )
    assert far - near == pytest.approx(0.28, abs=1e-4)
