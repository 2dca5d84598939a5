"""Plots of a run: speed-ups by kind with intervals, and acceptance by depth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from inference.extras import require
from outrider.measure.journal import Values
from outrider.measure.plots import reach


def draw(directory: Path, rows: Sequence[Values]) -> list[Path]:
    """Write a PNG file and return its path. Raises MissingExtra without matplotlib."""
    require("plots", "a picture")
    from matplotlib.figure import Figure

    drafted = [row for row in rows if row["speed"]]
    kinds, arms = (list(dict.fromkeys(row[name] for row in drafted)) for name in ("kind", "arm"))
    picture = Figure(figsize=(12, 5), layout="constrained")
    speeds, depths = picture.subplots(1, 2)
    for index, arm in enumerate(arms):
        mine, width = [row for row in drafted if row["arm"] == arm], 0.8 / len(arms)
        places = [kinds.index(row["kind"]) + (index + 0.5) * width - 0.4 for row in mine]
        means = [row["speed"]["mean"] for row in mine]
        bars = np.hstack([reach(*row["speed"].values()) for row in mine])
        speeds.bar(places, means, 0.9 * width, yerr=bars, capsize=3, label=arm)
        shares = mine[-1]["acceptance_by_depth"]
        depths.plot(range(1, len(shares) + 1), shares, ".-", label=f"{arm}, {mine[-1]['kind']}")
    speeds.set_xticks(range(len(kinds)), kinds)
    speeds.set(ylabel="speed over target-only, geometric mean and 95 % interval")
    depths.set(xlabel="depth", ylabel="share of forwards that accepted it")
    for axes in (speeds, depths):
        axes.legend(fontsize=8)
    path = directory / "summary.png"
    picture.savefig(path, dpi=120)
    return [path]
