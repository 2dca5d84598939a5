"""Pictures of a comparison: speeds with intervals by round trip, and speed against cost.

matplotlib is the optional extra `plots`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from inference.extras import require
from outrider.measure.arms import ARCHITECTURES, Arm
from outrider.measure.comparison import Comparison
from outrider.measure.rows import ResultRow
from outrider.measure.statistics import FigureInterval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

_LETTERS_AN_INCH = 14  # of a title
_COLOURS = {
    one.name: f"tab:{colour}"
    for one, colour in zip(
        ARCHITECTURES,
        ("gray", "brown", "green", "blue", "orange", "red", "purple", "pink", "olive"),
        strict=True,
    )
}
AXES: dict[str, Callable[[ResultRow], FigureInterval]] = {
    "$ per million tokens": lambda row: row.usd_per_million,
    "J per million tokens": lambda row: row.joules_per_million,
}
"""The costs that speed is weighed against."""


def draw(directory: Path, comparison: Comparison) -> list[Path]:
    """Write PNG files and return their paths. A picture without data is left out. Raises
    MissingExtra without matplotlib.
    """
    require("plots", "a picture")
    from matplotlib.figure import Figure

    pictures: dict[str, Callable[[Any, Comparison], bool]] = {
        "speeds": _speeds,
        "tradeoff": _tradeoff,
    }
    paths = []
    for name, paint in pictures.items():
        picture = Figure(figsize=(10, 5), layout="constrained")
        if paint(picture, comparison):
            letters = int(_LETTERS_AN_INCH * picture.get_figwidth())
            picture.suptitle(fill(comparison.title, letters), fontsize=8)
            paths.append(directory / f"{name}.png")
            picture.savefig(paths[-1], dpi=120)
    return paths


def _speeds(picture: Picture, comparison: Comparison) -> bool:
    """Tokens per second with bootstrap intervals, a group for each round trip."""
    axes, trips = picture.subplots(), comparison.options.rtt
    lanes = list(dict.fromkeys(row.arm.name for row in comparison.rows))
    width = 0.8 / len(lanes)
    for index, lane in enumerate(lanes):
        rows = [row for row in comparison.rows if row.arm.name == lane]
        shift = (index - (len(lanes) - 1) / 2) * width
        speeds = [row.tokens_per_second for row in rows]
        axes.bar(
            [trips.index(row.rtt_ms) + shift for row in rows],
            [speed.median for speed in speeds],
            0.9 * width,
            yerr=np.transpose([reach(*speed)[:, 0] for speed in speeds]),
            capsize=3,
            label=lane,
            color=_colour(rows[0].arm),
            alpha=1 - 0.007 * (rows[0].arm.setting.knob or 0.0),  # the cost end is the palest
        )
    axes.set_xticks(range(len(trips)), [f"{trip:g} ms" for trip in trips])
    axes.set(xlabel="added round trip", ylabel="tokens a second, median over texts")
    axes.legend(fontsize=8)
    return True


def _tradeoff(picture: Picture, comparison: Comparison) -> bool:
    """Speed against each cost that is known of every row whose target is rented."""
    panels = []
    for trip in comparison.options.rtt:
        rows = [row for row in comparison.at(trip) if not row.arm.architecture.on_this_machine]
        for name, read in AXES.items():
            if all(read(row).median.value is not None for row in rows):
                panels.append((trip, name, rows))
    if not panels:
        return False
    picture.set_size_inches(max(10, 5 * len(panels)), 5)
    axes = picture.subplots(1, len(panels), squeeze=False)[0]
    for panel, (trip, name, rows) in zip(axes, panels, strict=True):
        _panel(panel, rows, AXES[name])
        panel.set(xlabel=name, ylabel="tokens a second", title=f"{trip:g} ms added")
    return True


def _panel(
    panel: Axes, rows: Sequence[ResultRow], cost: Callable[[ResultRow], FigureInterval]
) -> None:
    """Points with error bars, the Pareto set filled and joined."""
    best = []
    for index, row in enumerate(sorted(rows, key=lambda row: row.tokens_per_second.median)):
        speed, (median, low, high) = row.tokens_per_second, cost(row)
        middle = median.value or 0.0
        colour = _colour(row.arm)
        panel.errorbar(
            [middle],
            [speed.median],
            reach(*speed),
            reach(middle, low or middle, high or middle),
            fmt="o",
            color=colour,
            markerfacecolor=colour if row.pareto else "white",
            capsize=3,
        )
        place, shift = (middle, speed.median), (6, 6 if index % 2 else -12)
        panel.annotate(row.arm.name, place, textcoords="offset points", xytext=shift, fontsize=8)
        best += [place] * row.pareto
    costs, speeds = ([point[part] for point in sorted(best)] for part in (0, 1))
    panel.plot(costs, speeds, "-", color="black", linewidth=1, alpha=0.6)
    if best:
        panel.plot([], [], "o", color="black", label="Pareto set")
        panel.plot([], [], "o", color="black", markerfacecolor="white", label="dominated")
        panel.legend(fontsize=8)


def reach(middle: float, low: float, high: float) -> Any:
    """Lengths of an error bar below and above the middle."""
    return np.array([[middle - low], [high - middle]])


def _colour(arm: Arm) -> str:
    """The colour of an arm's architecture, the same in every picture."""
    return _COLOURS[arm.architecture.name]
