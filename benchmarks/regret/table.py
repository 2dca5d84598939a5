"""The table of a study: what a token takes by each arm, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness import table_lines
from benchmarks.regret.stage import ALONE, ARMS, GROWING, HYBRID
from benchmarks.regret.study import Played

LEAST = 0.98
"""Least part of target-only's speed, in every setting."""


def of_alone(played: Played) -> float:
    """Growing's speed by target-only's."""
    return played.results[ALONE.name].token_ms / played.results[GROWING.name].token_ms


def markdown(studied: Sequence[Played]) -> str:
    """A table for each series, and whether any setting is below LEAST of target-only."""
    lines = list[str]()
    for series in dict.fromkeys(played.series for played in studied):
        rows = [_row(played) for played in studied if played.series is series]
        lines += [f"### Texts: {series.name}", ""]
        lines += [*table_lines(list(rows[0]), [list(row.values()) for row in rows]), ""]
    worst = min(studied, key=of_alone)
    below = sum(of_alone(played) < LEAST for played in studied)
    count = f"in {below} of {len(studied)} cells" if below else "in no cell"
    where = f"{worst.setting} ({worst.series.name})"
    verdict = f"Below {LEAST} of target-only: {count}; least {of_alone(worst):.2f} in {where}."
    return "\n".join([*lines, verdict, ""])


def _row(played: Played) -> dict[str, str]:
    growing, hybrid = (played.results[arm.name] for arm in (GROWING, HYBRID))
    columns = {
        "forwards": "forwards",
        "root-only": "lone",
        "nodes": "nodes",
        "calls": "calls",
        "sent": "proposed",
    }
    return {
        "RTT ms:draft:T": f"{played.setting}{' (tuned)' * played.tuned}",
        **{arm.name: f"{played.results[arm.name].token_ms:.1f}" for arm in ARMS},
        "growing, of target-only": f"{of_alone(played):.2f}x",
        "hybrid's calls a token": f"{hybrid.each('calls'):.2f}",
        **{f"{head} a token": f"{growing.each(name):.2f}" for head, name in columns.items()},
        "bytes up, down": f"{growing.each('bytes_up'):.0f}, {growing.each('bytes_down'):.0f}",
    }
