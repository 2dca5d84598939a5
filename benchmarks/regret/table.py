"""The table of a study: what a token takes by each arm, and a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import table_lines
from benchmarks.regret.stage import ALONE, ARMS, GROWING, HYBRID
from benchmarks.regret.study import Played, Reading

LEAST = 0.98
"""Least part of target-only's speed, in every cell."""


def of_alone(played: Played) -> float:
    """Growing's speed by target-only's."""
    return played.results[ALONE.name].token_ms / played.results[GROWING.name].token_ms


def record(studied: Sequence[Played]) -> list[dict[str, Any]]:
    """Everything, for JSON: a row of Reading for each text."""
    return [
        {
            "setting": str(played.setting),
            "series": played.series.name,
            "tuned": played.tuned,
            "columns": Reading._fields,
            "arms": {name: list(result.readings) for name, result in played.results.items()},
        }
        for played in studied
    ]


def markdown(studied: Sequence[Played]) -> str:
    """A table for each series, and what it comes to."""
    lines = list[str]()
    for series in dict.fromkeys(played.series for played in studied):
        rows = [_row(played) for played in studied if played.series is series]
        lines += [f"### Texts: {series.name}", ""]
        lines += [*table_lines(list(rows[0]), [list(row.values()) for row in rows]), ""]
    return "\n".join([*lines, verdict(studied), ""])


def verdict(studied: Sequence[Played]) -> str:
    """Whether any cell is below LEAST of target-only."""
    worst = min(studied, key=of_alone)
    below = sum(of_alone(played) < LEAST for played in studied)
    said = f"in {below} of {len(studied)} cells" if below else "in no cell"
    where = f"{worst.setting} ({worst.series.name})"
    return f"Below {LEAST} of target-only: {said}; least {of_alone(worst):.2f} in {where}."


def _row(played: Played) -> Mapping[str, str]:
    growing, hybrid = (played.results[arm.name] for arm in (GROWING, HYBRID))
    row = {"RTT ms:draft:T": f"{played.setting}{' (tuned)' * played.tuned}"}
    row |= {arm.name: f"{played.results[arm.name].token_ms:.1f}" for arm in ARMS}
    row["growing, of target-only"] = f"{of_alone(played):.2f}x"
    row["hybrid's calls a token"] = f"{hybrid.each('calls'):.2f}"
    costs = ("forwards", "lone", "nodes", "calls", "proposed")
    names = ("forwards", "root-only", "nodes", "calls", "sent")
    row |= {
        f"{name} a token": f"{growing.each(cost):.2f}"
        for name, cost in zip(names, costs, strict=True)
    }
    row["bytes up, down"] = f"{growing.each('bytes_up'):.0f}, {growing.each('bytes_down'):.0f}"
    return row
