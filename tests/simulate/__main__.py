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
from tests.simulate.world import run

PROGRESS_SECONDS = 15.0
TOGETHER_SECONDS = 20.0
"""Faults that begin within so many seconds meet."""


def many(seeds: range, fault: str) -> int:
    """Run seeds; print what fails, how far it is, and the campaign's figures."""
    sums, ends, pairs = Counter[str](), Counter[str](), set[frozenset[str]]()
    simulated, failed, told, began = 0.0, list[int](), time.monotonic(), time.process_time()
    for seed in seeds:
        with planted(fault):
            result = run(draw(seed))
        tokens = sum(len(text.tokens) for text in result.texts)
        faults = len(result.plan.faults)
        sums.update(seeds=1, texts=len(result.texts), tokens=tokens, faults=faults)
        ends.update(text.outcome or "gone with its client" for text in result.texts)
        pairs |= {
            frozenset({one, other})
            for (at, one), (later, other) in combinations(result.happened, 2)
            if abs(later - at) < TOGETHER_SECONDS and one != other
        }
        simulated += result.seconds
        if result.failures:
            failed.append(seed)
            print(f"seed {seed}: {result.failures[0][:300]}", flush=True)
            if fault:
                break
        if time.monotonic() - told > PROGRESS_SECONDS:
            told = time.monotonic()
            print(f"... {sums['seeds']} of {len(seeds)}", file=sys.stderr, flush=True)
    every = len(FAULTS) * (len(FAULTS) - 1) // 2
    print(
        f"{len(failed)} failed {failed[:20]}; {dict(sums)}; ends: {dict(ends.most_common())}; "
        f"{len(pairs)} of {every} pairs of faults; {simulated / 3600:.1f} h simulated in "
        f"{time.process_time() - began:.0f} s of CPU"
    )
    if failed and not fault:
        print("to test a seed from now on, add it to DEFECTS in tests/simulate/test_simulator.py")
    return int(bool(failed))


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
