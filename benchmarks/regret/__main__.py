"""The regret study.

    python -m benchmarks.regret [--quick] [--cells 80:mid:*,...] [--out DIR] [--others JSON] [--real-time [CELLS]]

Round trips of 0 to 300 ms, three drafts that agree more or less with the target, temperatures 0 and 0.8: what a token takes with every
fixed setting, with others' rules, and with what Outrider decides. The engine, the policies and the texts are real; time is counted on a
virtual clock by profiles: Llama-3.1-8B on trn1.2xlarge as the target, a computed laptop and a computed draft beside the target.
Every text is compared with the target's own, token for token; a difference ends the study.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from benchmarks.regret import real_time, table
from benchmarks.regret.arms import ARMS
from benchmarks.regret.prefixes import Prefixes
from benchmarks.regret.stage import BYTE_TIME, PROFILES, SEQUENCE_LENGTH
from benchmarks.regret.study import ROUND_TRIPS, Cell, Played, Study, cells
from benchmarks.regret.texts import PROMPTS, TOKENS
from inference.model.checkpoint import load_decoder
from inference.text import Tokenizer
from outrider.models import EMBEDDED

QUICK_ROUND_TRIPS, QUICK_TOKENS, QUICK_PROMPTS = (5, 40, 160), 96, 1


def embedded_study(prompts: int = len(PROMPTS), tokens: int = TOKENS) -> Study:
    """Of the embedded target, on so many of the prompts."""
    tokenizer = Tokenizer(EMBEDDED / "target")
    decoder = load_decoder(
        EMBEDDED / "target", positions=SEQUENCE_LENGTH, vocabulary=tokenizer.vocabulary, dtype=torch.float32, device=torch.device("cpu")
    )
    return Study(lambda: Prefixes(decoder), tokenizer.encode, PROMPTS[:prompts], tokens)


def run(study: Study, among: list[Cell], kept: dict[Cell, Played]) -> list[Played]:
    """All arms in all cells, with a line for each cell."""
    studied, began = [], time.perf_counter()
    for played in study.play(among, ARMS, kept):
        studied.append(played)
        name, here, anywhere = table.best(played, table.across()), table.regret_here(played), table.regret_anywhere(played)
        said = f"best {name} {played.results[name].token_ms:.1f} ms, adaptive {here:+.1%}, anywhere {anywhere:+.1%}"
        print(f"{len(studied)}/{len(among)} {played.cell}: {said} ({time.perf_counter() - began:.0f} s)", file=sys.stderr, flush=True)
    return studied


def write(studied: list[Played], out: Path) -> None:
    """The table and all figures behind it."""
    out.mkdir(parents=True, exist_ok=True)
    said = {
        "profiles": {name: vars(profile) for name, profile in PROFILES._asdict().items()},
        "seconds_a_byte": BYTE_TIME,
        "cells": table.record(studied),
    }
    (out / "regret.json").write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    (out / "regret.md").write_text(table.markdown(studied), encoding="utf-8")


def repeat(among: list[Cell], slower: float, out: Path | None) -> None:
    """Some arms in these cells in real time."""
    repeated = []
    for one in real_time.repeat(embedded_study(prompts=1, tokens=QUICK_TOKENS), among, slower):
        repeated.append(one)
        print(f"{one.cell} {one.arm}: virtual {one.virtual:.1f}, real {one.real:.1f} ms a token ({one.error:+.1%})", file=sys.stderr, flush=True)
    print(real_time.markdown(repeated))
    if out:
        out.mkdir(parents=True, exist_ok=True)
        figures = [{"cell": str(one.cell), "arm": one.arm, "virtual_ms": one.virtual, "real_ms": one.real, "late": one.late} for one in repeated]
        (out / "real_time.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three round trips, one short text")
    parser.add_argument("--cells", default="*", metavar="RTT:LEVEL:TEMPERATURE,...", help="patterns of cells, as 80:mid:* (default: all)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="regret.json and regret.md are written there")
    parser.add_argument(
        "--others", type=Path, nargs="+", default=[], metavar="JSON", help="regret.json of earlier runs: all arms but Outrider's are taken from there"
    )
    parser.add_argument(
        "--real-time", nargs="?", const=",".join(real_time.CELLS), metavar="CELLS", help="no grid: these cells by both clocks (default: five)"
    )
    parser.add_argument(
        "--slower",
        type=float,
        default=1.0,
        metavar="TIMES",
        help="with --real-time: all emulated times are so much longer, for a busy machine",
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.real_time:
        return repeat(cells(given.real_time.split(",")), given.slower, given.out)
    study = embedded_study(QUICK_PROMPTS, QUICK_TOKENS) if given.quick else embedded_study()
    among = cells(given.cells.split(","), QUICK_ROUND_TRIPS if given.quick else ROUND_TRIPS)
    if not among:
        parser.error(f"--cells {given.cells}: no cell of the grid matches")
    kept = {cell: played for path in given.others for cell, played in table.read_others(json.loads(path.read_text())["cells"]).items()}
    studied = run(study, among, kept)
    print(table.markdown(studied))
    if given.out:
        write(studied, given.out)


if __name__ == "__main__":
    main()
