"""Plots of a run: speed-ups by link or kind, acceptance by depth, and speed against cost.

matplotlib is the optional extra `plots`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from inference.extras import require
from outrider.measure.figures import AGAIN, BASELINE, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

_LETTERS_AN_INCH = 14  # of a title
_AXES = {
    "$ per million tokens": "usd_per_million",
    "J per million tokens": "joules_per_million",
}
"""The costs that speed is weighed against."""


def draw(directory: Path, title: str, rows: Sequence[Row]) -> list[Path]:
    """Write PNG files and return their paths. A picture without data is left out. Raises
    MissingExtra without matplotlib.
    """
    require("plots", "a picture")
    from matplotlib.figure import Figure

    pictures: dict[str, Callable[[Any, Sequence[Row]], bool]] = {
        "speeds": _speeds,
        "tradeoff": _tradeoff,
    }
    paths = []
    for name, paint in pictures.items():
        picture = Figure(figsize=(12, 5), layout="constrained")
        if paint(picture, rows):
            letters = int(_LETTERS_AN_INCH * picture.get_figwidth())
            picture.suptitle(fill(title, letters), fontsize=8)
            paths.append(directory / f"{name}.png")
            picture.savefig(paths[-1], dpi=120)
    return paths


def _speeds(picture: Picture, rows: Sequence[Row]) -> bool:
    """Speed-ups with intervals, a group for each link and kind; and acceptance by depth."""
    drawn = [row for row in rows if row.speed_up is not None]
    places, arms = (
        list(dict.fromkeys(map(_place, drawn))),
        list(dict.fromkeys(r.arm for r in drawn)),
    )
    if not drawn:
        return False
    bars, depths = picture.subplots(1, 2)
    width = 0.8 / len(arms)
    for index, arm in enumerate(arms):
        mine = [row for row in drawn if row.arm == arm]
        at = [places.index(_place(row)) + (index - (len(arms) - 1) / 2) * width for row in mine]
        ups = [row.speed_up for row in mine if row.speed_up is not None]
        reach = np.transpose([_reach(*up)[:, 0] for up in ups])
        bars.bar(at, [up.mean for up in ups], 0.9 * width, yerr=reach, capsize=3, label=arm,
                 color="silver" if arm == AGAIN else None)  # fmt: skip
        shares = mine[-1].acceptance_by_depth
        depths.plot(range(1, len(shares) + 1), shares, ".-", label=f"{arm}, {_place(mine[-1])}")
    bars.axhline(1, color="black", linewidth=0.8)
    bars.set_xticks(range(len(places)), places)
    bars.set(ylabel="speed-up over target-only, geometric mean and 95 % interval")
    depths.set(xlabel="depth", ylabel="share of forward passes that accepted it")
    for axes in (bars, depths):
        axes.legend(fontsize=8)
    return True


def _place(row: Row) -> str:
    return f"{row.kind}, {row.rtt_ms:g} ms"


def _tradeoff(picture: Picture, rows: Sequence[Row]) -> bool:
    """Speed against each cost that is known of every row whose target is rented."""
    panels = []
    for place in dict.fromkeys(map(_place, rows)):
        here = [row for row in rows if _place(row) == place and row.device and row.arm != AGAIN]
        for label, name in _AXES.items():
            if here and all(row.costs[name].median.value is not None for row in here):
                panels.append((place, label, name, here))
    if not panels:
        return False
    picture.set_size_inches(max(10, 5 * len(panels)), 5)
    axes = picture.subplots(1, len(panels), squeeze=False)[0]
    for panel, (place, label, name, here) in zip(axes, panels, strict=True):
        _panel(panel, here, name)
        panel.set(xlabel=label, ylabel="tokens a second", title=place)
    return True


def _panel(panel: Axes, rows: Sequence[Row], cost: str) -> None:
    """Points with error bars, the Pareto set filled and joined."""
    best = []
    for index, row in enumerate(sorted(rows, key=lambda row: row.tokens_per_second.median)):
        speed, (median, low, high) = row.tokens_per_second, row.costs[cost]
        middle = median.value or 0.0
        colour = "gray" if row.arm == BASELINE else f"C{index}"
        panel.errorbar(
            [middle],
            [speed.median],
            _reach(*speed),
            _reach(middle, low or middle, high or middle),
            fmt="o",
            color=colour,
            markerfacecolor=colour if row.pareto else "white",
            capsize=3,
        )
        place, shift = (middle, speed.median), (6, 6 if index % 2 else -12)
        panel.annotate(row.arm, place, textcoords="offset points", xytext=shift, fontsize=8)
        best += [place] * row.pareto
    costs, speeds = ([point[part] for point in sorted(best)] for part in (0, 1))
    panel.plot(costs, speeds, "-", color="black", linewidth=1, alpha=0.6)


def _reach(middle: float, low: float, high: float) -> Any:
    """Lengths of an error bar below and above the middle."""
    return np.array([[middle - low], [high - middle]])
