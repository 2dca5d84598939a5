"""The curve as a table, as tradeoff.json and tradeoff.csv, and as a picture. matplotlib is the
optional extra `plots`.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference.errors import MissingExtra
from inference.whole_file import write_whole
from outrider.comparison.results import environment
from outrider.comparison.spread import CONFIDENCE
from outrider.comparison.tables import UNKNOWN, figure
from outrider.tradeoff.measure import Tradeoff
from outrider.tradeoff.options import TradeoffOptions
from outrider.tradeoff.points import Point, Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOTE = (
    f"Medians over texts with their {CONFIDENCE:.0%} bootstrap interval, opening and prefill "
    "included. * Pareto: no other point is as good in everything and better in something. Calls of "
    "the draft, forwards and bytes up are those of a token."
)

Axis = tuple[str, Callable[[Point], Spread]]
AXES: tuple[Axis, ...] = (
    ("$ per million tokens", lambda point: point.usd_per_million),
    ("J per million tokens", lambda point: point.joules_per_million),
)
"""What speed is weighed against: its name and the measured value."""


def print_tradeoff(curve: Tradeoff) -> None:
    """All of it on the terminal."""
    from rich.console import Console
    from rich.table import Table

    heads = [
        "--cs",
        "tokens/s",
        "after first chunk",
        "$ per million",
        "J per million",
        "calls",
        "forwards",
        "bytes up",
        "",
    ]
    shown = Table(
        *heads, title=f"speed against {curve.objective}, target on {curve.device}", caption=NOTE
    )
    for point in curve.points:
        shown.add_row(*_cells(point))
    console = Console(width=None if sys.stdout.isatty() else 170, highlight=False)
    console.print(shown)
    for line in [f"$: {curve.account}.", *_unknown(curve), *curve.remarks]:
        console.print(f"- {line}", markup=False)


def write_tradeoff(directory: Path, options: TradeoffOptions, curve: Tradeoff) -> list[Path]:
    """tradeoff.json, .csv and .png, as far as they can be made: one line on stderr says why
    there is no picture.
    """
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / "tradeoff.json", directory / "tradeoff.csv"]
    results = {
        "environment": environment(),
        "options": {**vars(options), "draft": options.draft.model_dump(by_alias=True)},
        "device": curve.device,
        "objective": curve.objective,
        "accounting": curve.account,
        "remarks": curve.remarks,
        "points": [point.record() for point in curve.points],
        "texts": curve.texts,
    }
    write_whole(paths[0], json.dumps(results, indent=1) + "\n")
    with paths[1].open("w", newline="", encoding="utf-8") as file:
        lines = [columns(point) for point in curve.points]
        writer = csv.DictWriter(file, fieldnames=list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    try:
        return [*paths, *draw(directory, curve)]
    except MissingExtra as error:
        print(f"no picture: {error}", file=sys.stderr)
        return paths


def columns(point: Point) -> dict[str, Any]:
    """A point as one line of the CSV; what is not known says so, with the reason."""
    line: dict[str, Any] = {
        "cs": point.cs,
        "pareto": point.efficient,
        "texts": point.texts,
        "tokens": point.tokens,
    }
    speed = point.tokens_per_second
    line |= {
        "tokens_per_second": speed.median,
        "tokens_per_second_low": speed.low,
        "tokens_per_second_high": speed.high,
    }
    line |= {
        "after_first_chunk": point.after_first_chunk,
        "draft_calls": point.draft_calls,
        "forwards": point.forwards,
        "bytes_up": point.bytes_up,
    }
    for name in ("usd_per_million", "joules_per_million"):
        measured = getattr(point, name)
        known = measured.median.value is not None
        line |= {
            name: measured.median.value if known else UNKNOWN,
            f"{name}_low": measured.low,
            f"{name}_high": measured.high,
        }
        line[f"{name}_source"] = measured.median.source
    return {**line, "identical_texts": point.identical_texts}


def draw(directory: Path, curve: Tradeoff) -> list[Path]:
    """tradeoff.png, speed against each cost that is known, where one is; raises MissingExtra
    without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("plots need matplotlib: pip install 'outrider[plots]'") from error
    axes = [
        axis
        for axis in AXES
        if all(axis[1](point).median.value is not None for point in curve.points)
    ]
    if not axes:
        print(f"no picture: {'; '.join(_unknown(curve))}", file=sys.stderr)
        return []
    picture = Figure(figsize=(6 * len(axes), 5), layout="constrained")
    for panel, axis in zip(picture.subplots(1, len(axes), squeeze=False)[0], axes, strict=True):
        _panel(panel, axis, curve.points)
    picture.suptitle(
        f"target on {curve.device}; --cs weighs speed against {curve.objective}", fontsize=8
    )
    path = directory / "tradeoff.png"
    picture.savefig(path, dpi=120)
    return [path]


def _panel(panel: Axes, axis: Axis, points: Sequence[Point]) -> None:
    """Points with error bars, the Pareto set joined and filled."""
    name, measured = axis
    for index, point in enumerate(points):
        speed, cost = point.tokens_per_second, measured(point)
        middle = cost.median.value or 0.0
        across, along = (
            _reach(middle, cost.low, cost.high),
            _reach(speed.median, speed.low, speed.high),
        )
        filled = "tab:blue" if point.efficient else "white"
        panel.errorbar(
            [middle],
            [speed.median],
            along,
            across,
            fmt="o",
            color="tab:blue",
            markerfacecolor=filled,
            capsize=3,
        )
        panel.annotate(
            f"{point.cs:g}",
            (middle, speed.median),
            textcoords="offset points",
            xytext=(6, 6 + 11 * (index % 3)),
        )
    best = sorted(
        (measured(point).median.value or 0.0, point.tokens_per_second.median)
        for point in points
        if point.efficient
    )
    panel.plot(
        [cost for cost, _ in best],
        [speed for _, speed in best],
        "-",
        color="tab:blue",
        linewidth=1,
        alpha=0.6,
    )
    panel.plot([], [], "o", color="tab:blue", label="measured, Pareto set")
    panel.plot([], [], "o", color="tab:blue", markerfacecolor="white", label="measured, dominated")
    panel.set(xlabel=name, ylabel="tokens a second")
    panel.legend(fontsize=8)


def _reach(middle: float, low: float | None, high: float | None) -> list[list[float]]:
    """Of an error bar, below and above."""
    return [
        [middle - (middle if low is None else low)],
        [(middle if high is None else high) - middle],
    ]


def _cells(point: Point) -> list[str]:
    speed = point.tokens_per_second
    return [
        f"{point.cs:g}",
        f"{speed.median:.1f} ({speed.low:.1f} to {speed.high:.1f})",
        "-" if point.after_first_chunk is None else f"{point.after_first_chunk:.1f}",
        _spread(point.usd_per_million, 3),
        _spread(point.joules_per_million, 0),
        f"{point.draft_calls:.2f}",
        f"{point.forwards:.2f}",
        f"{point.bytes_up:.0f}",
        "*" if point.efficient else "",
    ]


def _spread(value: Spread, digits: int) -> str:
    interval = "" if value.low is None else f" ({value.low:.{digits}f} to {value.high:.{digits}f})"
    return figure(value.median, digits) + interval


def _unknown(curve: Tradeoff) -> list[str]:
    """What is unavailable, and why."""
    reasons = [
        (
            name,
            next(
                (
                    measured(point).median
                    for point in curve.points
                    if measured(point).median.value is None
                ),
                None,
            ),
        )
        for name, measured in AXES
    ]
    return [f"{name}: {UNKNOWN}: {known.source}" for name, known in reasons if known is not None]
