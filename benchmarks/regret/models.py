"""The study on real models, in real time: what a token takes across an emulated link, with several
arms on the same texts.

    python -m benchmarks.regret.models TARGET DRAFT [--dtype float32] [--cells 80:*:0,...]

The arms take turns on every text, in an order that changes; what one has learnt in a text serves
its next, within a cell. The target has the prompt's keys before every turn, and a text counts from
its first round's tokens on, as on the virtual clock. Each is compared with what the target says
alone. In bfloat16 a near-tie may fall otherwise in a pass of another shape: such texts are counted,
and their times kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.regret.arms import ALONE, ARMS, GROWING, Arm
from benchmarks.regret.dial import GUESSES, Agreement, Text
from benchmarks.regret.stage import Stage
from benchmarks.regret.study import ROUND_TRIPS, TEMPERATURES, Cell, Reading, Result, read
from benchmarks.regret.texts import PROMPTS
from benchmarks.regret.two_cores import Bench, Chosen, bench
from inference.backends import Model
from inference.command import run_command
from inference.decode import decode
from inference.errors import InvalidRequest
from inference.order import Decode
from inference.sampling import SamplingParams
from inference.sequence import ModelSequence
from inference.tree import TokenTree
from outrider.options import PRECISIONS

LEVEL = "pair"
"""The agreement of every cell: that of the two models."""

CELLS = tuple(f"{trip}:{LEVEL}:*" for trip in (0, 20, 80, 300))
"""Those that are played unless others are asked for."""

TOKENS = 32
"""Of each text."""

WARM_UP_TOKENS = 8
"""Of the first text, made by every arm before it begins: a machine's first calls of a kind take
longer.
"""

_NAMES = (
    *("target-only", "growing", "anywhere", "fused"),
    *("chain 2", "chain 4", "chain 8", "tree 8x3", "tree 16x4", "tree 32x5"),
    *("one bet (SpecEdge)", "AutoDraft, round trip known", "UCB-SpecStop"),
)
COMPARED = tuple(arm for arm in ARMS if arm.name in _NAMES)
"""The arms that are played: in real time every one of them costs minutes."""


class Said(NamedTuple):
    """What the target says by itself, and how well the draft foresees it."""

    texts: tuple[Text, ...]
    agreement: Agreement


@dataclass(frozen=True)
class PlayedTruly:
    """What every arm made of a cell, and how well its pair agrees on its texts."""

    cell: Cell
    agreement: Agreement
    results: dict[str, Result]

    @property
    def differing(self) -> dict[str, int]:
        """Texts that are not the target's own, by the arms that made any."""
        counts = {
            name: sum(one.differs_at is not None for one in result.readings)
            for name, result in self.results.items()
        }
        return {name: count for name, count in counts.items() if count}

    @property
    def texts(self) -> int:
        """Of all arms."""
        return sum(len(result.readings) for result in self.results.values())


class ModelStudy:
    """Arms on the models of a bench. prompts: as text.  tokens: of each text, fewer where the
    target ends it. Texts are made once for each temperature. Raises InvalidRequest where there is
    nothing to say.
    """

    def __init__(
        self, bench: Bench, arms: Sequence[Arm], prompts: Sequence[str], tokens: int
    ) -> None:
        if not prompts or tokens < 1:
            raise InvalidRequest(
                f"a text and a token are needed at least: got {len(prompts)} texts of {tokens} "
                "tokens"
            )
        self._bench, self._arms, self._prompts, self._tokens = bench, arms, prompts, tokens
        self._said: dict[float, Said] = {}

    def play(self, among: Sequence[Cell]) -> Iterator[PlayedTruly]:
        """Every arm in every cell. Raises InvalidRequest where the texts are so short that an
        arm makes all of them in one round each.
        """
        for cell in among:
            with self._bench.stage(cell.round_trip / 1e3) as stage:
                played = self._play(cell, stage)
            yield played

    def _play(self, cell: Cell, stage: Stage) -> PlayedTruly:
        if cell.temperature not in self._said:
            self._said[cell.temperature] = self._listen(stage, cell.temperature)
        said = self._said[cell.temperature]
        for arm in self._arms:
            read(
                arm.begin(stage),
                stage,
                said.texts[0]._replace(tokens=said.texts[0].tokens[:WARM_UP_TOKENS]),
            )
        players = {arm.name: arm.begin(stage) for arm in self._arms}
        readings: dict[str, list[Reading]] = {name: [] for name in players}
        for index, text in enumerate(said.texts):
            alone(stage, text.prompt, text.params, 1)  # now the target has the prompt's keys
            for turn in np.random.default_rng(index).permutation(len(self._arms)):
                name = self._arms[turn].name
                readings[name].append(read(players[name], stage, text))
        results = {name: Result(tuple(made)) for name, made in readings.items()}
        if short := [name for name, result in results.items() if not result.total("tokens")]:
            raise InvalidRequest(
                f"{short[0]} made every text in one round: longer ones are needed (--tokens)"
            )
        return PlayedTruly(cell, said.agreement, results)

    def _listen(self, stage: Stage, temperature: float) -> Said:
        """The target's own texts after the prompts."""
        texts = []
        for index, prompt in enumerate(self._prompts):
            ids = tuple(self._bench.tokenizer.encode(prompt))
            params = SamplingParams(temperature, seed=11 + index).on_the_wire()
            texts.append(
                Text(
                    ids,
                    params,
                    alone(stage, ids, params, self._tokens, self._bench.description.stop_ids),
                )
            )
        return Said(tuple(texts), agreement(stage.draft, texts))


def alone(
    stage: Stage,
    prompt: Sequence[int],
    params: SamplingParams,
    tokens: int,
    stop_ids: frozenset[int] = frozenset(),
) -> tuple[int, ...]:
    """What the target says by itself, across the link; a stop id ends it."""
    order, session = Decode(len(prompt) + tokens, stop_ids), stage.session
    with closing(session):
        steps = decode(prompt, params, session, order)
        return tuple(token for step in steps for token in step.tokens)


def agreement(draft: Model, texts: Sequence[Text]) -> Agreement:
    """How well the draft foresees what the target said."""
    first = covered = total = 0
    for text in texts:
        sequence = ModelSequence(draft, 0, text.params)
        sequence.extend(text.prompt[:-1])
        before = TokenTree.chain([text.prompt[-1], *text.tokens[:-1]])
        places = (
            sequence.rank(before, range(len(before)), GUESSES).ids == np.array(text.tokens)[:, None]
        )
        first, covered, total = (
            first + int(places[:, 0].sum()),
            covered + int(places.any(1).sum()),
            total + len(before),
        )
    return Agreement(first / total, covered / total)


def cells(patterns: Sequence[str] = CELLS) -> list[Cell]:
    """Those of the grid whose names (RTT:pair:TEMPERATURE) match a pattern, as `80:*:0`."""
    grid = [
        Cell(trip, LEVEL, temperature) for temperature, trip in product(TEMPERATURES, ROUND_TRIPS)
    ]
    return [cell for cell in grid if any(fnmatch(str(cell), pattern) for pattern in patterns)]


def record(bench: Bench, studied: Sequence[PlayedTruly]) -> dict[str, Any]:
    """Everything, for JSON: a row of Reading for each text, in seconds."""
    times, described = bench.times, bench.description
    return {
        "models": bench.chosen._asdict(),
        "device": described.device,
        "conditions": bench.words,
        "draft_call": times.here,
        "target_forward": [
            {"rows": rows, "nodes": nodes, "seconds": seconds}
            for (rows, nodes), seconds in times.target.items()
        ],
        "draft_call_beside": times.beside,
        "columns": Reading._fields,
        "cells": [
            {
                **played.cell._asdict(),
                "agreement": vars(played.agreement),
                "differing": played.differing,
                "arms": {name: list(made.readings) for name, made in played.results.items()},
            }
            for played in studied
        ],
    }


def markdown(bench: Bench, studied: Sequence[PlayedTruly]) -> str:
    """A row for each cell, under what it was measured with."""
    times = bench.times
    target = {nodes: seconds for (_, nodes), seconds in times.target.items()}
    here, beside = _milliseconds(times.here), _milliseconds(times.beside)
    lines = [
        bench.words,
        "",
        f"- The target's forward, ms by nodes: {_milliseconds(target)}",
        f"- A call of the draft, ms by width: {here}; beside the target: {beside}",
        f"- Milliseconds a token, of {len(studied[0].results[ALONE.name].readings)} texts",
        "",
    ]
    names = ["RTT ms:T", *studied[0].results, "growing, of target-only", "texts that differ"]
    lines += ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for played in studied:
        each = [f"{result.token_ms:.1f}" for result in played.results.values()]
        speed = played.results[ALONE.name].token_ms / played.results[GROWING.name].token_ms
        differing = f"{sum(played.differing.values())} of {played.texts}"
        cell = f"{played.cell.round_trip}:{played.cell.temperature:g}"
        lines.append("| " + " | ".join([cell, *each, f"{speed:.2f}x", differing]) + " |")
    return "\n".join([*lines, ""])


def _milliseconds(seconds: Mapping[int, float]) -> str:
    return ", ".join(f"{size} {1e3 * each:.3g}" for size, each in seconds.items())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs=2, metavar="MODEL", help="the target and the draft")
    parser.add_argument("--dtype", choices=PRECISIONS, default=Chosen._field_defaults["dtype"])
    parser.add_argument(
        "--cells",
        default=",".join(CELLS),
        metavar="RTT:pair:TEMPERATURE,...",
        help="patterns, as 80:*:0 (default: round trips of 0, 20, 80 and 300 ms)",
    )
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of each text")
    parser.add_argument("--texts", type=int, choices=range(1, 4), default=3, help="in each cell")
    parser.add_argument("--out", type=Path, metavar="DIR", help="models.json and models.md")
    return parser


def main() -> int:
    parser = _parser()
    given = parser.parse_args()
    among = cells(given.cells.split(","))
    if not among:
        parser.error(f"--cells {given.cells}: no cell of the grid matches")
    target, draft = given.models
    with bench(Chosen(target, draft, given.dtype)) as ready:
        studied = list[PlayedTruly]()
        for played in ModelStudy(ready, COMPARED, PROMPTS[: given.texts], given.tokens).play(among):
            studied.append(played)
            print(markdown(ready, studied), file=sys.stderr, flush=True)
            if given.out:
                write(given.out, record(ready, studied), markdown(ready, studied))
        print(markdown(ready, studied))
    return 0


def write(out: Path, figures: object, shown: str) -> None:
    """What there is so far."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "models.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    (out / "models.md").write_text(shown, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run_command(main, debug=False))
