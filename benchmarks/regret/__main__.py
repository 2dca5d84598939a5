"""The regret study.

    python -m benchmarks.regret [--quick] [--cells 80:mid:*,...] [--out DIR] [--others JSON] [--real-time [CELLS]]
    python -m benchmarks.regret --models TARGET DRAFT [--dtype float32] [--cells 80:*:0,...] [--tokens N] [--texts N] [--out DIR]

Round trips of 0 to 300 ms, three drafts that agree more or less with the target, temperatures 0 and 0.8: what a token takes with every
fixed setting, with others' rules, and with what Outrider decides. The engine, the policies and the texts are real; time is counted on a
virtual clock by profiles: Llama-3.1-8B on trn1.2xlarge as the target, a computed laptop and a computed draft beside the target.
Every text is compared with the target's own, token for token; a difference ends the study. With --models two real models play on two cores
of this machine, in real time, over an emulated link (models.py).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import torch

from benchmarks.regret import models, real_time, table
from benchmarks.regret.arms import ARMS
from benchmarks.regret.prefixes import Prefixes
from benchmarks.regret.stage import BYTE_TIME, PROFILES, SEQUENCE_LENGTH
from benchmarks.regret.study import ROUND_TRIPS, Cell, Played, Study, cells
from benchmarks.regret.texts import PROMPTS, TOKENS
from benchmarks.regret.two_cores import Chosen, bench
from inference.command import run_command
from inference.model.checkpoint import load_decoder
from inference.text import Tokenizer
from outrider.models import EMBEDDED
from outrider.options import PRECISIONS

SomePlayed = TypeVar("SomePlayed", bound=Played)

QUICK_ROUND_TRIPS, QUICK_TOKENS, QUICK_PROMPTS = (5, 40, 160), 96, 1


def embedded_study(prompts: int = len(PROMPTS), tokens: int = TOKENS) -> Study:
    """Of the embedded target, on so many of the prompts."""
    tokenizer = Tokenizer(EMBEDDED / "target")
    decoder = load_decoder(
        EMBEDDED / "target",
        positions=SEQUENCE_LENGTH,
        vocabulary=tokenizer.vocabulary,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    return Study(lambda: Prefixes(decoder), tokenizer.encode, PROMPTS[:prompts], tokens)


def told(playing: Iterable[SomePlayed], cells: int) -> Iterator[SomePlayed]:
    """The same, with a line for each cell."""
    began = time.perf_counter()
    for index, played in enumerate(playing, start=1):
        name, here, anywhere = (
            table.best(played, table.across()),
            table.regret_here(played),
            table.regret_anywhere(played),
        )
        said = f"best {name} {played.results[name].token_ms:.1f} ms, adaptive {here:+.1%}, anywhere {anywhere:+.1%}"
        print(
            f"{index}/{cells} {played.cell}: {said} ({time.perf_counter() - began:.0f} s)",
            file=sys.stderr,
            flush=True,
        )
        yield played


def write(said: object, shown: str, out: Path) -> None:
    """All figures, and the tables."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "regret.json").write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    (out / "regret.md").write_text(shown, encoding="utf-8")


def record(studied: list[Played]) -> dict[str, object]:
    """The figures of the virtual study."""
    return {
        "profiles": {name: vars(profile) for name, profile in PROFILES._asdict().items()},
        "seconds_a_byte": BYTE_TIME,
        "cells": table.record(studied),
    }


def on_models(chosen: Chosen, among: list[Cell], texts: int, tokens: int, out: Path | None) -> None:
    """The study on two real models; what there is so far is written after every cell."""
    with bench(chosen) as ready:
        studied = []
        for played in told(
            models.ModelStudy(ready, models.COMPARED, PROMPTS[:texts], tokens).play(among),
            len(among),
        ):
            studied.append(played)
            if out:
                write(models.record(ready, studied), models.markdown(ready, studied), out)
        print(models.markdown(ready, studied))


def on_virtual_clock(study: Study, among: list[Cell], others: list[Path], out: Path | None) -> None:
    """The study on the emulated target. others: files of earlier runs."""
    kept = {
        cell: played
        for path in others
        for cell, played in table.read_others(json.loads(path.read_text())["cells"]).items()
    }
    studied = list(told(study.play(among, ARMS, kept), len(among)))
    print(table.markdown(studied))
    if out:
        write(record(studied), table.markdown(studied), out)


def repeat(among: list[Cell], slower: float, out: Path | None) -> None:
    """Some arms in these cells in real time."""
    repeated = []
    for one in real_time.repeat(embedded_study(prompts=1, tokens=QUICK_TOKENS), among, slower):
        repeated.append(one)
        print(
            f"{one.cell} {one.arm}: virtual {one.virtual:.1f}, real {one.real:.1f} ms a token ({one.error:+.1%})",
            file=sys.stderr,
            flush=True,
        )
    print(real_time.markdown(repeated))
    if out:
        out.mkdir(parents=True, exist_ok=True)
        figures = [
            {
                "cell": str(one.cell),
                "arm": one.arm,
                "virtual_ms": one.virtual,
                "real_ms": one.real,
                "late": one.late,
            }
            for one in repeated
        ]
        (out / "real_time.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="three round trips, one short text")
    parser.add_argument(
        "--cells",
        metavar="RTT:LEVEL:TEMPERATURE,...",
        help="patterns of cells, as 80:mid:* (default: all; with --models, whose level is `pair`, round trips of 0, 20, 80 and 300 ms)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="regret.json and regret.md are written there"
    )
    parser.add_argument(
        "--others",
        type=Path,
        nargs="+",
        default=[],
        metavar="JSON",
        help="regret.json of earlier runs: all arms but Outrider's are taken from there",
    )
    parser.add_argument(
        "--real-time",
        nargs="?",
        const=",".join(real_time.CELLS),
        metavar="CELLS",
        help="no grid: these cells by both clocks (default: five)",
    )
    slower = "with --real-time: all emulated times are so much longer, for a busy machine"
    parser.add_argument("--slower", type=float, default=1.0, metavar="TIMES", help=slower)
    parser.add_argument(
        "--models",
        nargs=2,
        metavar=("TARGET", "DRAFT"),
        help="no emulation: these models, in real time",
    )
    parser.add_argument(
        "--dtype",
        choices=PRECISIONS,
        default=Chosen._field_defaults["dtype"],
        help="with --models (default: %(default)s)",
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=models.TOKENS,
        metavar="N",
        help="with --models: of each text (default: %(default)s)",
    )
    parser.add_argument(
        "--texts",
        type=int,
        choices=range(1, 1 + len(PROMPTS)),
        default=len(PROMPTS),
        metavar="N",
        help="with --models: in each cell (default: all %(default)s)",
    )
    return parser


def main() -> int:
    parser = _parser()
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.real_time:
        repeat(cells(given.real_time.split(",")), given.slower, given.out)
        return 0
    patterns = given.cells.split(",") if given.cells else None
    trips = QUICK_ROUND_TRIPS if given.quick else ROUND_TRIPS
    among = (
        models.cells(patterns or models.CELLS) if given.models else cells(patterns or ("*",), trips)
    )
    if not among:
        parser.error(f"--cells {given.cells}: no cell of the grid matches")
    if given.models:
        target, draft = given.models
        on_models(Chosen(target, draft, given.dtype), among, given.texts, given.tokens, given.out)
    else:
        study = embedded_study(QUICK_PROMPTS, QUICK_TOKENS) if given.quick else embedded_study()
        on_virtual_clock(study, among, given.others, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, debug=False))
