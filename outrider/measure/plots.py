"""Plots of a run: speed-up by link and kind, acceptance by depth, times by width, and speed against
cost. matplotlib is the optional extra `plots`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from inference.extras import require
from outrider.measure.arms import AGAIN
from outrider.measure.figures import COSTS, Row
from outrider.measure.journal import Values

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LETTERS_AN_INCH = 14  # of a title


def draw(directory: Path, title: str, rows: Sequence[Row], starts: Sequence[Values]) -> list[Path]:
    """Write PNG files and return their paths. A picture without data is left out. Raises
    MissingExtra without matplotlib.

    starts: of the run, with the target's times
    """
    require("plots", "a picture")
    from matplotlib.figure import Figure

    drawn = [row for row in rows if row.speed_up is not None]
    priced = {
        name: [row for row in rows if row.costs[name].median.value is not None] for name in COSTS
    }
    costs = [name for name in COSTS if len(priced[name]) > 1]
    paths = []
    for name, count in (("speeds", 3 * bool(drawn)), ("tradeoff", len(costs))):
        if not count:
            continue
        picture = Figure(figsize=(6 * max(count, 2), 5), layout="constrained")
        axes = picture.subplots(1, count, squeeze=False)[0]
        if name == "speeds":
            _speed_ups(axes[0], drawn)
            _acceptance(axes[1], drawn)
            _times(axes[2], starts)
        else:
            for panel, cost in zip(axes, costs, strict=True):
                _tradeoff(panel, priced[cost], cost)
        letters = int(_LETTERS_AN_INCH * picture.get_figwidth())
        picture.suptitle(fill(title, letters), fontsize=8)
        paths.append(directory / f"{name}.png")
        picture.savefig(paths[-1], dpi=120)
    return paths


def _place(row: Row) -> str:
    return f"{row.kind}, {row.rtt_ms:g} ms"


def _speed_ups(axes: Axes, rows: Sequence[Row]) -> None:
    """Speed-ups with intervals, a group of bars for each link and kind."""
    places, arms = list(dict.fromkeys(map(_place, rows))), list(dict.fromkeys(r.arm for r in rows))
    width = 0.8 / len(arms)
    for index, arm in enumerate(arms):
        mine = [(_place(row), row.speed_up) for row in rows if row.arm == arm and row.speed_up]
        at = [places.index(place) + (index - (len(arms) - 1) / 2) * width for place, _ in mine]
        means = [up.mean for _, up in mine]
        reach = np.array([(up.mean - up.low, up.high - up.mean) for _, up in mine]).T
        colour = "silver" if arm == AGAIN else None
        axes.bar(at, means, 0.9 * width, yerr=reach, capsize=3, label=arm, color=colour)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(places)), places)
    axes.set(ylabel="speed-up over target-only, geometric mean and 95 % interval")
    axes.legend(fontsize=8)


def _acceptance(axes: Axes, rows: Sequence[Row]) -> None:
    for row in {row.arm: row for row in rows}.values():
        shares = row.acceptance_by_depth
        axes.plot(range(1, len(shares) + 1), shares, ".-", label=f"{row.arm}, {_place(row)}")
    axes.set(xlabel="depth", ylabel="share of forward passes that accepted it")
    axes.legend(fontsize=8)


def _times(axes: Axes, starts: Sequence[Values]) -> None:
    """Seconds of the target's forward passes by their nodes, a line for each number of rows."""
    times = starts[-1].get("times", []) if starts else []
    for count in sorted({rows for rows, _, _ in times}):
        points = sorted((nodes, 1e3 * seconds) for rows, nodes, seconds in times if rows == count)
        axes.plot(*zip(*points, strict=True), ".-", label=f"{count} rows")
    axes.set(xlabel="nodes of a forward pass of the target", ylabel="ms")
    if times:
        axes.legend(fontsize=8)


def _tradeoff(axes: Axes, rows: Sequence[Row], cost: str) -> None:
    """Speed against a cost, with intervals."""
    for row in rows:
        speed, (median, low, high) = row.tokens_per_second, row.costs[cost]
        middle = median.value or 0.0
        across = [[middle - (low or middle)], [(high or middle) - middle]]
        above = [[speed.median - speed.low], [speed.high - speed.median]]
        label = f"{row.arm}, {_place(row)}"
        axes.errorbar([middle], [speed.median], above, across, fmt="o", capsize=3, label=label)
    axes.set(xlabel=cost.replace("_", " ") + " tokens", ylabel="tokens a second")
    axes.legend(fontsize=8)
