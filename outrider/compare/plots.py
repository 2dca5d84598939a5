"""The pictures of a comparison: speeds with intervals, time a token by round trip, the regime map,
and speed against cost.

matplotlib is the optional extra `plots`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inference.drafters.tree_policies import Chain
from inference.errors import MissingExtra
from inference.times import LatencyModel
from outrider.compare.arms import ARCHITECTURES, BASELINE, Arm
from outrider.compare.intervals import FigureInterval
from outrider.compare.measure import Comparison, network
from outrider.compare.prediction import Network, best_chain, least_time, made_at_the_target
from outrider.compare.rows import ResultRow
from outrider.compare.verdict import break_even_ms, leader, least_miss

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

_STEPS = 60  # points of a curve, and of each side of the map
_LEAST_SPAN_MS = 100.0
_LETTERS_AN_INCH = 14  # of a title
_STYLES = ("-", "--", "-.", ":")  # lines of an architecture's settings
_COLOURS = {
    one.name: f"tab:{colour}"
    for one, colour in zip(
        ARCHITECTURES,
        ("gray", "brown", "green", "blue", "orange", "red", "purple", "pink", "olive"),
        strict=True,
    )
}
_ROUNDS = "tab:cyan"
AXES: dict[str, Callable[[ResultRow], FigureInterval]] = {
    "$ per million tokens": lambda row: row.usd_per_million,
    "J per million tokens": lambda row: row.joules_per_million,
}
"""The costs that speed is weighed against."""


def draw(directory: Path, comparison: Comparison) -> list[Path]:
    """Write PNG files and return their paths. A picture without data is left out. Raises
    MissingExtra without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("plots need matplotlib: pip install 'outrider[plots]'") from error
    pictures: dict[str, Callable[[Any, Comparison], bool]] = {
        "speeds": _speeds,
        "round_trip": _round_trip,
        "regime_map": _regime_map,
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
    lanes = list(dict.fromkeys(_lane(row.arm) for row in comparison.rows))
    width = 0.8 / len(lanes)
    for index, lane in enumerate(lanes):
        rows = [row for row in comparison.rows if _lane(row.arm) == lane]
        shift = (index - (len(lanes) - 1) / 2) * width
        speeds = [row.tokens_per_second for row in rows]
        axes.bar(
            [trips.index(row.rtt_ms) + shift for row in rows],
            [speed.median for speed in speeds],
            0.9 * width,
            yerr=np.transpose([_reach(*speed)[:, 0] for speed in speeds]),
            capsize=3,
            label=lane,
            color=_colour(rows[0].arm),
            alpha=1 - 0.007 * (rows[0].arm.setting.knob or 0.0),  # the cost end is the palest
        )
    axes.set_xticks(range(len(trips)), [f"{trip:g} ms" for trip in trips])
    axes.set(xlabel="added round trip", ylabel="tokens a second, median over texts")
    axes.legend(fontsize=8)
    return True


def _round_trip(picture: Picture, comparison: Comparison) -> bool:
    """Measured time a token as points, the closed forms as lines, and the bound of rounds."""
    axes: Axes = picture.subplots()
    trips = np.linspace(0, _span(comparison), _STEPS)
    links = [network(comparison.options, trip / 1e3) for trip in trips]
    labels = set[str]()
    for row in comparison.rows:
        if row.seconds_per_token is not None:
            label = "_" * (_lane(row.arm) in labels) + _lane(row.arm)  # once in the legend
            labels.add(label)
            time = row.seconds_per_token * 1e3
            axes.plot(row.rtt_ms, time, "o", color=_colour(row.arm), label=label)
    styles = {one.name: cycle(_STYLES) for one in ARCHITECTURES}
    measured = {row.arm.name for row in comparison.rows}
    for arm, costs in comparison.costs:
        closed_form = arm.architecture.time
        if closed_form is not None and arm.name in measured:
            times = [closed_form(costs, link) * 1e3 for link in links]
            style, label = next(styles[arm.architecture.name]), f"{arm.name}, predicted"
            axes.plot(trips, times, style, color=_colour(arm), label=label)
    if comparison.rounds:
        miss, verify = least_miss(comparison), min(one.made.verify for one in comparison.rounds)
        least = [least_time(miss, link.round_trip, verify) * 1e3 for link in links]
        axes.plot(trips, least, ":", color="black", label="no rounds with these guesses are faster")
    words = "ms a token after the first chunk (points: measured)"
    axes.set(xlabel="added round trip, ms", ylabel=words, ylim=(0, None))
    axes.legend(fontsize=8)
    return True


def _regime_map(picture: Picture, comparison: Comparison) -> bool:
    """Which is faster by the closed forms, the target alone or synchronous rounds. Points show what
    was fastest here.
    """
    known, end = regime_map(comparison), break_even_ms(comparison)
    if known is None or end is None:
        return False
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    trips = np.linspace(0, 2 * _span(comparison), _STEPS)
    acceptances = np.linspace(0.3, 0.98, _STEPS)
    axes: Axes = picture.subplots()
    regimes = {"target-only": _COLOURS[BASELINE], "synchronous rounds": _ROUNDS}
    axes.imshow(
        known.rounds_win(acceptances.tolist(), (trips / 1e3).tolist()),
        origin="lower",
        aspect="auto",
        extent=(0.0, float(trips[-1]), 0.3, 0.98),
        cmap=ListedColormap(list(regimes.values())),
        vmin=0,
        vmax=1,
        alpha=0.5,
    )
    shown: list[Any] = [
        Patch(color=colour, alpha=0.5, label=f"computed, best chain: {name}")
        for name, colour in regimes.items()
    ]
    if end > 0:
        words = "computed break-even of the rounds that were measured"
        shown.append(axes.axvline(end, color="black", linestyle="--", label=words))
    for trip in comparison.options.rtt:
        shown += _measured_winner(axes, trip, comparison.at(trip))
    axes.set(xlabel="added round trip, ms", ylabel="acceptance of a guess", ylim=(0.3, 0.98))
    axes.legend(handles=shown, loc="lower right", fontsize=8)
    return True


def _measured_winner(axes: Axes, rtt_ms: float, rows: Sequence[ResultRow]) -> list[Any]:
    """A point for the fastest arm, at the acceptance of the chain that was measured there."""
    chain = next((row for row in rows if row.arm.architecture.crosses), None)
    if chain is None or chain.acceptance is None:
        return []
    first = leader(rows)
    name = "cannot be told" if first is None else first.arm.name
    colour = "white" if first is None else _colour(first.arm)
    axes.plot(rtt_ms, chain.acceptance, "o", color=colour, markeredgecolor="black", clip_on=False)
    label = f"measured fastest at {rtt_ms:g} ms: {name}"
    return axes.plot([], [], "o", color=colour, markeredgecolor="black", label=label)


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
            _reach(*speed),
            _reach(middle, low or middle, high or middle),
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


@dataclass(frozen=True)
class RegimeMap:
    """Times in seconds that the closed forms need."""

    alone: float  # a token of the target by itself
    passes: LatencyModel  # passes of the target
    level: float  # drafting one more token
    host: float  # a round's time outside both models

    def rounds(self, acceptance: float, round_trip: float) -> float:
        """Seconds a token of synchronous rounds, with the best chain for this acceptance of a
        guess.
        """

        def seconds(length: int) -> float:
            passing = self.passes.seconds(1, length + 1)
            return length * self.level + passing + self.host + round_trip

        return best_chain(acceptance, seconds).time

    def rounds_win(
        self, acceptances: Sequence[float], round_trips: Sequence[float]
    ) -> NDArray[np.bool_]:
        """Whether rounds are faster than the target alone: [acceptance, round trip]."""
        return np.array(
            [[self.rounds(one, trip) < self.alone for trip in round_trips] for one in acceptances]
        )


def regime_map(comparison: Comparison) -> RegimeMap | None:
    """The map, from the costs of chains and target-only; None where either is not known."""
    alone = comparison.alone
    chains = [
        (one.arm.setting.policy.length, one.costs)
        for one in comparison.costs
        if isinstance(one.arm.setting.policy, Chain)
    ]
    if alone is None or not chains:
        return None
    passes = LatencyModel()
    for known in (alone, *(known for _, known in chains)):
        passes.observe(1, round(known.nodes), known.made.verify)
    return RegimeMap(
        alone=made_at_the_target(alone, Network(0.0)),
        passes=passes,
        level=min(known.made.drafting / length for length, known in chains if length),
        host=min(known.host + known.queue for _, known in chains),
    )


def _lane(arm: Arm) -> str:
    """The label of an arm's bars, one for each round trip: its architecture, or a position of the
    knob.
    """
    return arm.name if arm.setting.knob is not None else arm.architecture.name


def _reach(middle: float, low: float, high: float) -> Any:
    """Lengths of an error bar below and above the middle."""
    return np.array([[middle - low], [high - middle]])


def _span(comparison: Comparison) -> float:
    return max(1.2 * max(comparison.options.rtt), _LEAST_SPAN_MS)


def _colour(arm: Arm) -> str:
    """The colour of an arm's architecture, the same in every picture."""
    return _COLOURS[arm.architecture.name]
