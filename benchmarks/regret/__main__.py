"""The regret study: what a token takes with a tree that never stops growing, on a virtual clock.

    python -m benchmarks.regret [--cells 80:mid:*,...] [--held-out] [--json FILE]
    python -m benchmarks.regret --dozen

Cells are RTT:LEVEL:TEMPERATURE[:xDRAFT][:fast]: a round trip in milliseconds, how well the draft
agrees, and, where they are not the study's own, how long a call of the draft takes (x0.5: half as
long) and a target twice as fast. The engine, the loop, the proposers and the texts are real; time
is counted on a virtual clock by profiles: Llama-3.1-8B on trn1.2xlarge as the target, and a
computed laptop. Every text is compared with the target's own, token for token; a difference ends
the study.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from benchmarks.harness import command, write_json
from benchmarks.regret import table
from benchmarks.regret.arms import ALONE, GROWING
from benchmarks.regret.settings import DOZEN, MAIN, SERIES, Series, settings
from benchmarks.regret.study import Played, Study, embedded_study, play
from benchmarks.regret.texts import TOKENS
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


def main() -> int:
    parser = command(__doc__)
    parser.add_argument("--cells", default="*", metavar="PATTERN,...", help="as 80:mid:*")
    parser.add_argument("--dozen", action="store_true", help="the cells that every change plays")
    parser.add_argument("--held-out", action="store_true", help="the held-out texts, too")
    parser.add_argument("--texts", type=int, help="texts of a series (default: all)")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of a text")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where all figures are written")
    given = parser.parse_args()
    among = settings(DOZEN if given.dozen else given.cells.split(","))
    if not among:
        parser.error(f"--cells {given.cells}: no cell matches")
    torch.set_num_threads(1)
    series = SERIES if given.held_out else (MAIN,)

    def study(of: Series) -> Study:
        return embedded_study(of.prompts[: given.texts], given.tokens, of.seed)

    studied = list(told(play(among, series, study), len(among) * len(series)))
    print(table.markdown(studied))
    write_json(given.json, table.record(studied))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, debug=False))
