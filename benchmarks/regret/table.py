"""What a study shows: growing beside the target alone, the core before it, and the best of what
waits; and a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from benchmarks.harness import table_lines
from benchmarks.regret.arms import (
    ALONE,
    ANYWHERE,
    FUSED,
    GROWING,
    HYBRID,
    RIVALS,
    SUFFIX,
    SYNCHRONOUS,
)
from benchmarks.regret.frozen import ADAPTIVE, Frozen, FrozenTexts
from benchmarks.regret.grid import OTHERS, Played
from benchmarks.regret.study import Reading, Result
from inference.errors import InvalidRequest

LEAST = 0.98
"""Of target-only's speed, in every cell."""

NOTHING = 0.02
"""A smaller difference in one cell is none: a forward more or less decides it."""

_NONE = "-"


def before(played: Played, frozen: Frozen) -> FrozenTexts | None:
    """What was frozen of these texts. Raises InvalidRequest where the texts were others."""
    found = frozen.get((played.setting, played.series.name))
    if found is not None and abs(found.miss - played.agreement.miss) > 1e-4:
        raise InvalidRequest(
            f"{played.setting}, {played.series.name}: the frozen texts miss {found.miss:.2%} of "
            f"the tokens, these {played.agreement.miss:.2%}: they are not the same"
        )
    return found


def of_alone(played: Played) -> float:
    """Growing's speed by target-only's."""
    return played.results[ALONE.name].token_ms / played.results[GROWING.name].token_ms


def against(result: Result, other: Sequence[float]) -> list[float]:
    """How much longer it takes than another, text by text."""
    return [mine / theirs - 1 for mine, theirs in zip(result.by_text, other, strict=True)]


def record(studied: Sequence[Played]) -> list[dict[str, Any]]:
    """Everything, for JSON: a row of Reading for each text."""
    return [
        {
            "setting": str(played.setting),
            "series": played.series.name,
            "tuned": played.tuned,
            "agreement": vars(played.agreement),
            "columns": Reading._fields,
            "arms": {name: list(result.readings) for name, result in played.results.items()},
        }
        for played in studied
    ]


def markdown(studied: Sequence[Played], frozen: Frozen) -> str:
    """A table for each series, and what it comes to."""
    lines = list[str]()
    for series in dict.fromkeys(played.series for played in studied):
        mine = [played for played in studied if played.series is series]
        lines += [f"### Texts: {series.name}", ""]
        rows = [_row(played, before(played, frozen)) for played in mine]
        lines += [*table_lines(list(rows[0]), [list(row.values()) for row in rows]), ""]
        lines += [*_summary(mine, frozen), ""]
    return "\n".join([*lines, verdict(studied), ""])


def verdict(studied: Sequence[Played]) -> str:
    """Whether any cell is below LEAST of target-only."""
    speed, worst = min(
        ((of_alone(played), f"{played.setting} ({played.series.name})") for played in studied),
        key=lambda one: one[0],
    )
    below = sum(of_alone(played) < LEAST for played in studied)
    said = f"in {below} of {len(studied)} cells" if below else "in no cell"
    return f"Below {LEAST} of target-only: {said}; least {speed:.2f} in {worst}."


def _row(played: Played, old: FrozenTexts | None) -> Mapping[str, str]:
    growing = played.results[GROWING.name]
    best = played.best(OTHERS)
    row = {
        "RTT ms:draft:T": f"{played.setting}{' (tuned)' * played.tuned}",
        "target-only": _ms(played.results.get(ALONE.name)),
        "synchronous": _best(played, SYNCHRONOUS),
        "rivals": _best(played, RIVALS),
        "before": f"{old.mean(ADAPTIVE):.1f}" if old else _NONE,
        "**growing**": f"**{growing.token_ms:.1f}**",
        "of target-only": f"{of_alone(played):.2f}x",
        "against before (by text)": _compared(growing, old.milliseconds[ADAPTIVE] if old else None),
        "against the best other": _compared(
            growing, played.results[best].by_text if best else None
        ),
    }
    for arm in (HYBRID, SUFFIX, FUSED, ANYWHERE):
        if arm.name in played.results:
            row[arm.name] = _ms(played.results[arm.name])
    if HYBRID.name in played.results:
        row["hybrid's calls a token"] = f"{played.results[HYBRID.name].each('calls'):.2f}"
    costs = ("forwards", "lone", "nodes", "calls", "proposed")
    names = ("forwards", "root-only", "nodes", "calls", "sent")
    row |= {
        f"{name} a token": f"{growing.each(cost):.2f}"
        for name, cost in zip(names, costs, strict=True)
    }
    row["bytes up, down"] = f"{growing.each('bytes_up'):.0f}, {growing.each('bytes_down'):.0f}"
    return row


def _ms(result: Result | None) -> str:
    return _NONE if result is None else f"{result.token_ms:.1f}"


def _best(played: Played, among: Sequence[Any]) -> str:
    name = played.best(among)
    return _NONE if name is None else f"{played.results[name].token_ms:.1f} ({name})"


def _compared(result: Result, other: Sequence[float] | None) -> str:
    if other is None:
        return _NONE
    each = against(result, other)
    whole = sum(result.by_text) / sum(other) - 1
    return f"{whole:+.0%} ({min(each):+.0%} to {max(each):+.0%})"


def _summary(studied: Sequence[Played], frozen: Frozen) -> Iterator[str]:
    """Cells whose draft is worth having, against the core before and against the best other."""
    useful = [played for played in studied if of_alone(played) > 1 + NOTHING]
    old = [
        sum(played.results[GROWING.name].by_text) / sum(found.milliseconds[ADAPTIVE]) - 1
        for played in useful
        if (found := before(played, frozen)) is not None
    ]
    others = [
        played.results[GROWING.name].token_ms / played.results[best].token_ms - 1
        for played in useful
        if (best := played.best(OTHERS)) is not None
    ]
    for said, differences in (("the core before", old), ("the best other arm", others)):
        if differences:
            faster = sum(one < -NOTHING for one in differences)
            slower = sum(one > NOTHING for one in differences)
            mean = geometric_mean([1 + one for one in differences]) - 1
            yield (
                f"Against {said}, where the draft is of use: faster by more than {NOTHING:.0%} in "
                f"{faster} of {len(differences)} cells, slower in {slower}; {mean:+.1%} in the "
                f"geometric mean, worst {max(differences, default=math.nan):+.0%}."
            )
