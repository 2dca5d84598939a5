"""Measured times of a few forward passes, and a fit that separates their parts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from compile.plan.pass_seconds import RATES
from inference.backends import Model
from inference.errors import OutriderError
from inference.planner.profiling import CONTEXT, time_calls
from inference.times import Shape
from inference.times_file import Profile
from outrider.measure.progress import progress
from outrider.measure.statistics import Interval, bootstrap_median
from outrider.terminal.tables import aligned

CHUNK = 256
"""Nodes of the pass that represents a prompt chunk, if the target takes so many."""

SHAPES: tuple[Shape, ...] = ((1, 1), (1, 16), (1, 64), (4, 16))
"""Rows and nodes of each, beside the chunk. 1 node against 16 and 64 shows what a node costs, and 4
rows of 16 against one of 64 what a row does. In the chunk arithmetic takes over.
"""

REPEATS, CALLS = 3, 5
"""Rounds over all shapes, so that a disturbed moment meets one round, and calls of each in one."""


class GraphTime(NamedTuple):
    """Seconds of one shape: the median over all calls with its interval, or why there is none."""

    shape: Shape
    padded: Shape  # what is computed
    seconds: Interval | None
    failure: str = ""

    def record(self) -> dict[str, object]:
        """The times as plain data for JSON."""
        seconds = None if self.seconds is None else self.seconds._asdict()
        names = ("rows", "nodes", "padded_rows", "padded_nodes")
        sizes = dict(zip(names, (*self.shape, *self.padded), strict=True))
        return {**sizes, "seconds": seconds, "failure": self.failure}


def time_graphs(model: Model, length: int) -> list[GraphTime]:
    """Measure every shape that the model takes. A failed shape has a reason.

    length: positions of the model
    """
    chunk = 1, min(CHUNK, model.max_nodes, model.capacity // 2, length // 2)
    shapes = list(dict.fromkeys([*SHAPES, chunk]))
    samples = {shape: list[float]() for shape in shapes}
    failures = {shape: _refusal(model, length, shape) for shape in shapes}
    with progress(REPEATS * len(shapes)) as report:
        for _, shape in product(range(REPEATS), shapes):
            if not failures[shape]:
                try:
                    samples[shape] += time_calls(model, length, shape, CALLS)
                except (OutriderError, RuntimeError) as error:  # torch and runtimes raise these
                    failures[shape] = str(error).splitlines()[0]
            report("forward passes of {} x {} nodes".format(*shape))
    return [
        GraphTime(
            shape,
            shape if failures[shape] else model.padded(*shape),
            bootstrap_median(samples[shape]) if samples[shape] else None,
            failures[shape],
        )
        for shape in shapes
    ]


def _refusal(model: Model, length: int, shape: Shape) -> str:
    rows, nodes = shape
    limit = min(model.max_nodes, model.capacity - 1, length - 1)
    if rows > model.rows:
        return f"the target was loaded with {model.rows} rows"
    return f"the target takes {limit} nodes beside a context" if nodes > limit else ""


class Fit(NamedTuple):
    """Seconds of a forward pass: call + rows x row + rows x nodes x node, by least squares.

    call holds weights, layers and the host's part: the passes of one model cannot separate these.
    """

    call: float
    row: float
    node: float
    error: float  # largest, as a part of the measured time

    def seconds(self, rows: int, nodes: int) -> float:
        """Seconds of a forward pass of this shape."""
        return self.call + rows * self.row + rows * nodes * self.node


def fit(times: Sequence[GraphTime]) -> Fit | None:
    """The fit to the measured shapes; None for fewer than three. Errors count relative to the time,
    and no part is negative.
    """
    medians = _medians(times)
    if len(medians) < 3:
        return None
    parts = np.array([[1, rows, rows * nodes] for rows, nodes in medians], dtype=np.float64)
    seconds = np.array([*medians.values()])
    best, used = np.zeros(3), [0, 1, 2]
    while used:  # a part that would be negative is left out, the most negative first
        solution = np.linalg.lstsq(
            parts[:, used] / seconds[:, None], np.ones(len(seconds)), rcond=None
        )[0]
        if (solution >= 0).all():
            best[used] = solution
            break
        used.pop(int(solution.argmin()))
    error = float(np.abs(parts @ best / seconds - 1).max())
    call, row, node = best.tolist()
    return Fit(call, row, node, error)


def _medians(times: Sequence[GraphTime]) -> dict[Shape, float]:
    """Measured seconds by the computed shape."""
    return {time.padded: time.seconds.median for time in times if time.seconds is not None}


def profile(name: str, source: str, times: Sequence[GraphTime]) -> Profile | None:
    """The profile of these times, for --emulate. None if nothing was measured."""
    shapes = tuple((*shape, seconds) for shape, seconds in sorted(_medians(times).items()))
    return Profile(name, source, "That context costs nothing.", shapes) if shapes else None


def times_table(times: Sequence[GraphTime], fitted: Fit | None, device: str) -> list[str]:
    """The measured times with their intervals, the fit, and the constants of the plan's model."""
    heads = ("shape", "computed as", "measured ms [95 %]", "fit", "")
    table = aligned(heads, [_cells(time, fitted) for time in times])
    lines = [line.rstrip() for line in table]
    lines.append(
        f"Rows x nodes at a context of {CONTEXT} slots; {REPEATS} rounds of {CALLS} calls, medians."
    )
    if fitted is not None:
        lines.append(
            f"Fit: {fitted.call * 1e3:.2f} ms a call, {fitted.row * 1e3:.3f} ms a row, "
            f"{fitted.node * 1e3:.4f} ms a node; max error {fitted.error:.0%}."
        )
    if (rates := RATES.get(device)) is not None:
        lines.append(
            f"The plan's model: {rates.stream / 1e9:.0f} GB/s of weights, keys and values, "
            f"{rates.layer * 1e6:.0f} us a layer, {rates.call * 1e3:.1f} ms a call and "
            f"{rates.node * 1e3:.2f} ms a node."
        )
    return lines


def _cells(time: GraphTime, fitted: Fit | None) -> list[str]:
    sizes = [f"{rows}x{nodes}" for rows, nodes in (time.shape, time.padded)]
    if time.seconds is None:
        return [*sizes, "-", "-", time.failure]
    median, low, high = (f"{seconds * 1e3:.2f}" for seconds in time.seconds)
    computed = "-" if fitted is None else f"{fitted.seconds(*time.padded) * 1e3:.2f}"
    return [*sizes, f"{median} [{low}, {high}]", computed, ""]
