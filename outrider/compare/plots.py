"""The pictures of a comparison: speeds with their intervals, time a token against the round trip,
and which architecture wins where.

matplotlib is the optional extra `plots`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from inference.errors import MissingExtra
from outrider.compare.arms import ARCHITECTURES, BASELINE, TREE
from outrider.compare.closed_forms import least_time
from outrider.compare.landscape import ROUNDS, landscape
from outrider.compare.measure import Comparison, network
from outrider.compare.options import CompareOptions

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

_STEPS = 60  # of a curve, and of each side of the map
_LEAST_SPAN_MS = 100.0
_STYLES = ("-", "--", "-.")  # of an architecture's settings


def draw(directory: Path, options: CompareOptions, comparison: Comparison) -> list[Path]:
    """PNG files; raises MissingExtra without matplotlib. A picture that has nothing to show is
    left out.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("plots need matplotlib: pip install 'outrider[plots]'") from error
    pictures: dict[str, Callable[[Any, CompareOptions, Comparison], bool]] = {
        "speeds": _speeds,
        "round_trip": _round_trip,
        "winners": _winners,
    }
    paths = []
    for name, paint in pictures.items():
        picture = Figure(figsize=(10, 5), layout="constrained")
        if paint(picture, options, comparison):
            picture.suptitle(f"target on {comparison.device}", fontsize=8)
            paths.append(directory / f"{name}.png")
            picture.savefig(paths[-1], dpi=120)
    return paths


def _speeds(picture: Picture, options: CompareOptions, comparison: Comparison) -> bool:
    """Tokens per second with bootstrap intervals, a group for each round trip."""
    axes, names = picture.subplots(), _names(comparison)
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        rows = [row for row in comparison.rows if row.architecture == name]
        places = [
            options.rtt.index(row.rtt_ms) + (index - (len(names) - 1) / 2) * width for row in rows
        ]
        speeds = [row.tokens_per_second for row in rows]
        reach = [
            [speed.median - speed.low for speed in speeds],
            [speed.high - speed.median for speed in speeds],
        ]
        axes.bar(
            places,
            [speed.median for speed in speeds],
            width,
            yerr=reach,
            capsize=3,
            label=name,
            color=_colour(name),
        )
    axes.set_xticks(range(len(options.rtt)), [f"{trip:g} ms" for trip in options.rtt])
    axes.set(xlabel="added round trip", ylabel="tokens a second, median over texts")
    axes.legend()
    return True


def _round_trip(picture: Picture, options: CompareOptions, comparison: Comparison) -> bool:
    """Measured time a token as points, the closed forms as lines, and the bound."""
    axes: Axes = picture.subplots()
    trips = np.linspace(0, _span(options), _STEPS)
    for row in comparison.rows:
        if row.seconds_per_token is not None:
            axes.plot(row.rtt_ms, row.seconds_per_token * 1e3, "o", color=_colour(row.architecture))
    for architecture in ARCHITECTURES:
        settings = dict.fromkeys(
            row.setting for row in comparison.rows if row.architecture == architecture.name
        )
        for setting, style in zip(settings, cycle(_STYLES)):  # styles do not end
            costs, time = comparison.costs.get((architecture.name, setting)), architecture.time
            if costs is not None and time is not None:
                times = [time(costs, network(options, trip / 1e3)) * 1e3 for trip in trips]
                name = f"{architecture.name} {setting}".strip()
                axes.plot(
                    trips,
                    times,
                    style,
                    color=_colour(architecture.name),
                    label=f"{name}, predicted",
                )
    trees = [costs for (name, _), costs in comparison.costs.items() if name == TREE]
    if comparison.coverage is not None and trees:
        verify = min(costs.made.verify for costs in trees)
        least = [
            least_time(1 - comparison.coverage, network(options, trip / 1e3).round_trip, verify)
            * 1e3
            for trip in trips
        ]
        axes.plot(trips, least, ":", color="black", label="no draft across this link is faster")
    axes.set(
        xlabel="added round trip, ms",
        ylabel="ms a token after the first chunk (points: measured)",
        ylim=(0, None),
    )
    axes.legend(fontsize=8)
    return True


def _winners(picture: Picture, options: CompareOptions, comparison: Comparison) -> bool:
    """The target alone, or synchronous rounds: which is faster by the closed forms."""
    known = landscape(comparison.costs)
    if known is None:
        return False
    among = [BASELINE, ROUNDS]
    trips, acceptances = np.linspace(0, 2 * _span(options), _STEPS), np.linspace(0.3, 0.98, _STEPS)
    axes: Axes = picture.subplots()
    winners = known.fastest(acceptances.tolist(), (trips / 1e3).tolist(), among)
    extent = (0.0, float(trips[-1]), float(acceptances[0]), float(acceptances[-1]))
    shown = _paint_map(axes, winners, among, extent)
    if comparison.acceptance is not None:
        measured = "acceptance measured here"
        shown.append(
            axes.axhline(
                comparison.acceptance, color="black", linewidth=1, linestyle="--", label=measured
            )
        )
    axes.set(xlabel="added round trip, ms", ylabel="acceptance of a guess")
    axes.legend(handles=shown, loc="lower right", fontsize=8)
    return True


def _paint_map(
    axes: Axes, winners: Any, among: Sequence[str], extent: tuple[float, float, float, float]
) -> list[Artist]:
    """Returns what its legend needs."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    colours = ListedColormap([_colour(name) for name in among])
    axes.imshow(
        winners,
        origin="lower",
        aspect="auto",
        extent=extent,
        cmap=colours,
        vmin=-0.5,
        vmax=len(among) - 0.5,
        alpha=0.8,
    )
    return [Patch(color=_colour(name), label=name) for name in among]


def _names(comparison: Comparison) -> list[str]:
    return list(dict.fromkeys(row.architecture for row in comparison.rows))


def _span(options: CompareOptions) -> float:
    return max(1.2 * max(options.rtt), _LEAST_SPAN_MS)


_COLOURS = (
    "tab:gray",
    "tab:brown",
    "tab:green",
    "tab:blue",
    "tab:orange",
    "tab:red",
    "tab:purple",
    "tab:pink",
)


def _colour(name: str) -> str:
    """The same in every picture; rounds have one in the map."""
    names = [architecture.name for architecture in ARCHITECTURES]
    return "tab:cyan" if name == ROUNDS else _COLOURS[names.index(name) % len(_COLOURS)]
