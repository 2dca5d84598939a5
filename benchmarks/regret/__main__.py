"""The regret study: what a token takes with a tree that never stops growing, and with everything
else that one could do.

    python -m benchmarks.regret [--cells 80:mid:*,...] [--held-out] [--ours] [--out DIR]
    python -m benchmarks.regret --dozen

Cells are RTT:LEVEL:TEMPERATURE[:xDRAFT][:fast]: a round trip in milliseconds, how well the draft
agrees, and, where they are not the study's own, how long a call of the draft takes (x0.5: half as
long) and a target twice as fast. The engine, the loop, the proposers and the texts are real; time
is counted on a virtual clock by profiles: Llama-3.1-8B on trn1.2xlarge as the target, a computed
laptop and a computed draft beside the target. Every text is compared with the target's own, token
for token; a difference ends the study.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.harness import command, write_json
from benchmarks.regret import table
from benchmarks.regret.arms import ALONE, GROWING
from benchmarks.regret.frozen import read_frozen
from benchmarks.regret.grid import OTHERS, Grid, Played
from benchmarks.regret.settings import DOZEN, MAIN, SERIES, Series, settings
from benchmarks.regret.stage import BYTE_TIME, PROFILES
from benchmarks.regret.study import Study, embedded_study
from inference.command import run_command


def told(playing: Iterable[Played], count: int) -> Iterator[Played]:
    """Yield the cells as they are played, and print a line for each."""
    began = time.perf_counter()
    for index, played in enumerate(playing, start=1):
        alone, growing = (played.results[arm.name].token_ms for arm in (ALONE, GROWING))
        print(
            f"{index}/{count} {played.setting}, {played.series.name}: target-only {alone:.1f}, "
            f"growing {growing:.1f} ms a token ({time.perf_counter() - began:.0f} s)",
            file=sys.stderr,
            flush=True,
        )
        yield played


def write(studied: Sequence[Played], shown: str, out: Path) -> None:
    """All figures, and the tables."""
    said = {
        "profiles": {name: vars(profile) for name, profile in PROFILES._asdict().items()},
        "seconds_a_byte": BYTE_TIME,
        "cells": table.record(studied),
    }
    write_json(out / "regret.json", said)
    (out / "regret.md").write_text(shown, encoding="utf-8")


def study_of(series: Series) -> Study:
    """On the embedded target."""
    return embedded_study(series.prompts, seed=series.seed)


def _parser() -> argparse.ArgumentParser:
    parser = command(__doc__)
    parser.add_argument(
        "--cells",
        default="*",
        metavar="PATTERN,...",
        help="of their names, as 80:mid:* or *:x0.25 (default: all)",
    )
    parser.add_argument(
        "--dozen", action="store_true", help="the cells that are played for every change"
    )
    parser.add_argument("--held-out", action="store_true", help="the held-out texts, too")
    parser.add_argument(
        "--ours", action="store_true", help="without the synchronous arms and the rivals"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="regret.json and regret.md are written there"
    )
    return parser


def main() -> int:
    parser = _parser()
    given = parser.parse_args()
    among = settings(DOZEN if given.dozen else given.cells.split(","))
    if not among:
        parser.error(f"--cells {given.cells}: no cell matches")
    torch.set_num_threads(1)
    series = SERIES if given.held_out else (MAIN,)
    grid = Grid(study_of, others=() if given.ours else OTHERS)
    studied = list(told(grid.play(among, series), len(among) * len(series)))
    shown = table.markdown(studied, read_frozen())
    print(shown)
    if given.out:
        write(studied, shown, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, debug=False))
