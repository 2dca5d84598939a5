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

import time

import torch

from benchmarks.harness import Flags, JsonFile, run, write_json
from benchmarks.regret.settings import DOZEN, MAIN, SERIES, Series, settings
from benchmarks.regret.stage import ALONE, GROWING
from benchmarks.regret.study import Played, Study, embedded_study, play
from benchmarks.regret.table import markdown
from benchmarks.regret.texts import TOKENS
from inference.command import say
from inference.errors import InvalidRequest
from inference.flags.values import Words


class Options(Flags):
    cells: Words = ("*",)
    """patterns such as 80:mid:*"""
    dozen: bool = False
    """the cells that every change plays"""
    held_out: bool = False
    """the held-out texts, too"""
    texts: int | None = None
    """of a series (default: all)"""
    tokens: int = TOKENS
    """of a text"""
    json_file: JsonFile = None


def main(given: Options) -> None:
    among = settings(DOZEN if given.dozen else given.cells)
    if not among:
        raise InvalidRequest(f"--cells {','.join(given.cells)}: no cell matches")
    torch.set_num_threads(1)
    series, studied, began = SERIES if given.held_out else (MAIN,), list[Played](), time.monotonic()

    def study(of: Series) -> Study:
        return embedded_study(of.prompts[: given.texts], given.tokens, of.seed)

    for played in play(among, series, study):
        studied.append(played)
        alone, growing = (played.results[arm.name].token_ms for arm in (ALONE, GROWING))
        say(
            f"{len(studied)}/{len(among) * len(series)} {played.setting}, {played.series.name}: "
            f"target-only {alone:.1f}, growing {growing:.1f} ms a token "
            f"({time.monotonic() - began:.0f} s)"
        )
    print(markdown(studied))
    write_json(given.json_file, [played.record() for played in studied])


if __name__ == "__main__":
    run(Options, main)
