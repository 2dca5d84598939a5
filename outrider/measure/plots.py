"""Plots a run: speed-up by link and kind, and acceptance by depth. matplotlib is the optional extra
`plots`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from inference.errors import require
from outrider.measure.figures import Row
from outrider.measure.run import AGAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LETTERS_PER_INCH = 14  # of a title


def draw(directory: Path, title: str, rows: Sequence[Row]) -> list[Path]:
    """Write a PNG file if any row has a speed-up. Returns the paths written. Raises MissingExtra
    without matplotlib.
    """
    require("plots", "a picture")
    from matplotlib.figure import Figure

    drawn = [row for row in rows if row.speed_up is not None]
    if not drawn:
        return []
    picture = Figure(figsize=(12, 5), layout="constrained")
    speeds, depths = picture.subplots(1, 2)
    _speed_ups(speeds, drawn)
    _acceptance(depths, drawn)
    picture.suptitle(fill(title, 12 * _LETTERS_PER_INCH), fontsize=8)
    path = directory / "speeds.png"
    picture.savefig(path, dpi=120)
    return [path]


def _place(row: Row) -> str:
    return f"{row.kind}, {row.rtt_ms:g} ms"


def _speed_ups(axes: Axes, rows: Sequence[Row]) -> None:
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
