"""Plots a run: speed-up by link and kind, acceptance by depth, and forward-pass times by nodes.
matplotlib is the optional extra `plots`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from inference.errors import require
from outrider.measure.arms import AGAIN
from outrider.measure.figures import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LETTERS_PER_INCH = 14  # of a title

Times: TypeAlias = Sequence[tuple[int, int, float]]
"""Tuples of rows, nodes and seconds of a forward pass."""


def draw(directory: Path, title: str, rows: Sequence[Row], times: Times) -> list[Path]:
    """Write a PNG file if any row has a speed-up. Returns the paths written. Raises MissingExtra
    without matplotlib.

    times: forward passes of the target
    """
    require("plots", "a picture")
    from matplotlib.figure import Figure

    drawn = [row for row in rows if row.speed_up is not None]
    if not drawn:
        return []
    picture = Figure(figsize=(18, 5), layout="constrained")
    speeds, depths, widths = picture.subplots(1, 3)
    _speed_ups(speeds, drawn)
    _acceptance(depths, drawn)
    _times(widths, times)
    picture.suptitle(fill(title, 18 * _LETTERS_PER_INCH), fontsize=8)
    path = directory / "speeds.png"
    picture.savefig(path, dpi=120)
    return [path]


def _place(row: Row) -> str:
    return f"{row.kind}, {row.rtt_ms:g} ms"


def _speed_ups(axes: Axes, rows: Sequence[Row]) -> None:
    """Plot speed-ups with intervals, a group of bars for each link and kind."""
    places, arms = list(dict.fromkeys(map(_place, rows))), list(dict.fromkeys(r.arm for r in rows))
    width = 0.8 / len(arms)
    for index, arm in enumerate(arms):
        mine = [(_place(row), row.speed_up) for row in rows if row.arm == arm and row.speed_up]
        at = [places.index(place) + (index - (len(arms) - 1) / 2) * width for place, _ in mine]
        means = [up.value for _, up in mine]
        reach = np.array([(up.value - up.low, up.high - up.value) for _, up in mine]).T
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


def _times(axes: Axes, times: Times) -> None:
    """Plot times of the target's forward passes by nodes, a line for each number of rows."""
    for count in sorted({rows for rows, _, _ in times}):
        points = sorted((nodes, 1e3 * seconds) for rows, nodes, seconds in times if rows == count)
        axes.plot(*zip(*points, strict=True), ".-", label=f"{count} rows")
    axes.set(xlabel="nodes of a forward pass of the target", ylabel="ms")
    if times:
        axes.legend(fontsize=8)
