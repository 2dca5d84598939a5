"""Whole systems by seed.

    python -m tests.simulate --seeds N [--start S] [--planted NAME]
    python -m tests.simulate --seed N [--trace] [--shrink] [--planted NAME]

The first runs N seeds, and prints a line for each that fails; the second runs one again. Exit
status 1 where one fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from itertools import combinations

from tests.simulate.plan import FAULTS, draw, shrink
from tests.simulate.plants import PLANTS, planted
from tests.simulate.world import Result, run

PROGRESS_SECONDS = 15.0
TOGETHER_SECONDS = 20.0
"""Faults that begin within so many seconds meet."""


class Campaign:
    """Sums over the seeds of a campaign."""

    def __init__(self) -> None:
        self.seeds = self.texts = self.tokens = self.faults = 0
        self.simulated, self.failed = 0.0, list[int]()
        self.pairs, self.outcomes = set[frozenset[str]](), Counter[str]()

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.texts += len(result.texts)
        self.tokens += sum(len(text.tokens) for text in result.texts)
        self.faults += len(result.plan.faults)
        self.simulated += result.seconds
        self.outcomes.update(text.outcome or "gone with its client" for text in result.texts)
        if result.failures:
            self.failed.append(result.plan.seed)
        for (at, one), (later, other) in combinations(result.happened, 2):
            if abs(later - at) < TOGETHER_SECONDS and one != other:
                self.pairs.add(frozenset({one, other}))

    def summary(self, seconds: float) -> str:
        """Return the campaign's figures in words."""
        every = len(FAULTS) * (len(FAULTS) - 1) // 2
        ends = ", ".join(f"{what} {times}" for what, times in self.outcomes.most_common())
        return (
            f"{self.seeds} seeds, {len(self.failed)} failed {self.failed[:20]}; {self.texts} texts "
            f"({ends}), {self.tokens} tokens, {self.faults} faults, {len(self.pairs)} of {every} "
            f"pairs of faults; {self.simulated / 3600:.1f} h simulated in {seconds:.0f} s of CPU"
        )


def many(seeds: range, fault: str) -> int:
    """Run seeds; print what fails, and how far it is."""
    campaign, told, began = Campaign(), time.monotonic(), time.process_time()
    for seed in seeds:
        with planted(fault):
            result = run(draw(seed))
        campaign.add(result)
        if result.failures:
            print(f"seed {seed}: {result.failures[0][:300]}", flush=True)
            if fault:
                break
        if time.monotonic() - told > PROGRESS_SECONDS:
            told = time.monotonic()
            print(f"... {campaign.seeds} of {len(seeds)}", file=sys.stderr, flush=True)
    print(campaign.summary(time.process_time() - began))
    if campaign.failed and not fault:
        print("to test a seed from now on, add it to DEFECTS in tests/simulate/test_simulator.py")
    return int(bool(campaign.failed))


def one(seed: int, fault: str, *, trace: bool, smaller: bool) -> int:
    """Run a seed and tell its story."""
    with planted(fault):
        plan = draw(seed)
        if smaller:
            plan = shrink(plan, lambda smaller: bool(run(smaller).failures))
        result = run(plan)
    print(plan)
    print("\n".join([*(result.lines if trace else []), *result.failures]))
    return int(bool(result.failures))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--planted", choices=PLANTS, default="")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--shrink", action="store_true")
    given = parser.parse_args()
    if given.seed is not None:
        return one(given.seed, given.planted, trace=given.trace, smaller=given.shrink)
    return many(range(given.start, given.start + given.seeds), given.planted)


if __name__ == "__main__":
    sys.exit(main())
