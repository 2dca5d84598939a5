"""Whole systems by seed: the same seed is the same history, and no history breaks a promise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulate.plan import draw
from tests.simulate.plants import PLANTS, planted
from tests.simulate.world import run
from tests.support.repository import ROOT

SEEDS, MANY = range(20), range(20, 340)

DEFECTS = (115, 2308, 3380, 5974, 9263, 10378)
"""Seeds that found one, of the product or of the simulator: docs/reliability.md tells what."""


@pytest.mark.parametrize("seed", [*SEEDS, *DEFECTS])
def test_no_seed_breaks_a_promise(seed: int) -> None:
    assert run(draw(seed)).failures == []


@pytest.mark.extended
@pytest.mark.parametrize("first", MANY[::20])
def test_no_seed_of_many_breaks_a_promise(first: int) -> None:
    failed = {seed: run(draw(seed)).failures for seed in range(first, first + 20)}
    assert {seed: failures for seed, failures in failed.items() if failures} == {}


def test_a_story_is_the_same_in_every_process() -> None:
    """No address of an object and no hash of a string decides anything."""
    salt = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    there = subprocess.run(
        [sys.executable, "-m", "tests.simulate", "--seed", "6", "--trace"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": salt},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    here = run(draw(6))
    assert there.splitlines() == [str(here.plan), *here.lines]
    assert "fault: " in there


@pytest.mark.extended
@pytest.mark.parametrize("fault", PLANTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    with planted(fault):
        assert any(run(draw(seed)).failures for seed in range(300))
