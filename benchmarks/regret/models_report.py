"""What arms made of real models' texts, and how it is told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from benchmarks.harness import table_lines, write_json
from benchmarks.regret.arms import ALONE
from benchmarks.regret.dial import Agreement
from benchmarks.regret.study import Cell, Reading, Result
from benchmarks.regret.two_cores import Bench

_DRAWS, _SEED = 2000, 20261


@dataclass(frozen=True)
class PlayedTruly:
    """What every arm made of a cell, and how well its pair agrees on its texts. kinds: of the
    texts.  loads: what ran on this machine, or waited, before the cell and after it.
    """

    cell: Cell
    agreement: Agreement
    results: dict[str, Result]
    kinds: tuple[str, ...]
    loads: tuple[float, float]

    @property
    def differing(self) -> dict[str, int]:
        """Texts that are not the target's own, by the arms that made any."""
        counts = {
            name: sum(one.differs_at is not None for one in result.readings)
            for name, result in self.results.items()
        }
        return {name: count for name, count in counts.items() if count}

    def speeds(self, arm: str) -> dict[str, list[float]]:
        """By kind: of every text, how many times as fast as target-only. A text that either made
        in one round has no speed.
        """
        speeds = defaultdict(list)
        pairs = zip(
            self.kinds, self.results[ALONE.name].readings, self.results[arm].readings, strict=True
        )
        for kind, alone, made in pairs:
            if alone.tokens and made.tokens:
                speeds[kind].append(alone.seconds / alone.tokens * made.tokens / made.seconds)
        return dict(speeds)

    @property
    def texts(self) -> int:
        """How many texts all arms made."""
        return sum(len(result.readings) for result in self.results.values())


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
                "kinds": played.kinds,
                "loads": played.loads,
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
    names = ["RTT ms:T", *studied[0].results, "texts that differ", "load before, after"]
    rows = list[list[str]]()
    for played in studied:
        each = [f"{result.token_ms:.1f}" for result in played.results.values()]
        differing = f"{sum(played.differing.values())} of {played.texts}"
        loads = "{:.1f}, {:.1f}".format(*played.loads)
        rows.append([_short(played.cell), *each, differing, loads])
    heads = ("RTT ms:T", "kind", "arm", "texts", "of target-only (95 %)", "least, most")
    kinds = [row for played in studied for row in by_kind(played)]
    lines += [*table_lines(names, rows), "", *table_lines([*heads, "forwards a token"], kinds)]
    return "\n".join([*lines, ""])


def by_kind(played: PlayedTruly) -> Iterator[list[str]]:
    """Speeds over target-only: geometric means of pairs of texts."""
    for arm, result in played.results.items():
        for kind, speeds in played.speeds(arm).items() if arm != ALONE.name else ():
            readings = [
                one for of, one in zip(played.kinds, result.readings, strict=True) if of == kind
            ]
            forwards = Result(tuple(readings)).each("forwards")
            spread = f"{min(speeds):.2f}, {max(speeds):.2f}"
            low, high = geometric_interval(speeds)
            speed = f"{geometric_mean(speeds):.2f}x ({low:.2f} to {high:.2f})"
            cells = [_short(played.cell), kind, arm, str(len(speeds)), speed, spread]
            yield [*cells, f"{forwards:.2f}"]


def geometric_interval(values: Sequence[float]) -> tuple[float, float]:
    """The interval that holds the geometric mean with a confidence of 0.95, by the percentile
    bootstrap with a fixed seed.
    """
    logs = np.log(np.asarray(values, dtype=np.float64))
    draws = np.random.default_rng(_SEED).choice(logs, (_DRAWS, len(logs)))
    low, high = np.exp(np.percentile(draws.mean(1), [2.5, 97.5]))
    return float(low), float(high)


def _short(cell: Cell) -> str:
    return f"{cell.round_trip}:{cell.temperature:g}"


def _milliseconds(seconds: Mapping[int, float]) -> str:
    return ", ".join(f"{size} {1e3 * each:.3g}" for size, each in seconds.items())


def write(out: Path, figures: object, shown: str) -> None:
    """What there is so far."""
    write_json(out / "models.json", figures)
    (out / "models.md").write_text(shown, encoding="utf-8")
