"""Measured times of a few forward passes, and a fit that separates their parts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from compile.plan.pass_seconds import RATES
from inference.backends import Model
from inference.errors import OutriderError
from inference.planner.profiling import CONTEXT, time_calls
from inference.times import Shape
from inference.times_file import Profile
from outrider.measure.figures import Interval, median_interval
from outrider.measure.progress import progress
from outrider.terminal.tables import aligned

CHUNK = 256
"""Nodes of the pass that represents a prompt chunk, if the target takes so many."""

SHAPES: tuple[Shape, ...] = ((1, 1), (1, 16), (1, 64), (4, 16))
"""Rows and nodes of each, beside the chunk. 1 node against 16 and 64 shows what a node costs, and 4
rows of 16 against one of 64 what a row does. In the chunk arithmetic takes over.
"""

REPEATS, CALLS = 3, 5
"""Rounds over all shapes, so that a disturbed moment meets one round, and calls of each in one."""


class GraphTimes(NamedTuple):
    """Seconds of forward passes by rows and nodes as they are computed: medians over all calls with
    their intervals. failures: why other shapes have none
    """

    seconds: Mapping[Shape, Interval]
    failures: Mapping[Shape, str]

    def record(self) -> list[dict[str, Any]]:
        """The times as plain data for JSON."""
        measured = [(shape, each._asdict(), "") for shape, each in self.seconds.items()]
        failed = [(shape, None, why) for shape, why in self.failures.items()]
        return [
            {"rows": rows, "nodes": nodes, "seconds": seconds, "failure": why}
            for (rows, nodes), seconds, why in [*measured, *failed]
        ]

    def profile(self, name: str, source: str) -> Profile | None:
        """The profile of these times, for --emulate. None if nothing was measured."""
        shapes = tuple((*shape, each.value) for shape, each in sorted(self.seconds.items()))
        return Profile(name, source, "That context costs nothing.", shapes) if shapes else None

    def fit(self) -> Fit | None:
        """The fit to these times; None for fewer than three. Errors count relative to the time, and
        no part is negative.
        """
        if len(self.seconds) < 3:
            return None
        parts = np.array([[1, rows, rows * nodes] for rows, nodes in self.seconds], np.float64)
        parts /= np.array([[each.value] for each in self.seconds.values()])
        best, used = np.zeros(3), [0, 1, 2]
        while used:  # a part that would be negative is left out, the most negative first
            best[:] = 0
            best[used] = np.linalg.lstsq(parts[:, used], np.ones(len(parts)), rcond=None)[0]
            if (best >= 0).all():
                break
            used.remove(int(best.argmin()))
        call, row, node = best.tolist()
        return Fit(call, row, node, float(np.abs(parts @ best - 1).max()))


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


def time_graphs(model: Model, length: int) -> GraphTimes:
    """Measure every shape that the model takes.

    length: positions of the model
    """
    chunk = 1, min(CHUNK, model.max_nodes, model.capacity // 2, length // 2)
    limit = min(model.max_nodes, model.capacity - 1, length - 1)
    shapes, failures = dict[Shape, Shape](), dict[Shape, str]()
    for rows, nodes in [*SHAPES, chunk]:
        if rows > model.rows:
            failures[rows, nodes] = f"the target was loaded with {model.rows} rows"
        elif nodes > limit:
            failures[rows, nodes] = f"the target takes {limit} nodes beside a context"
        else:
            shapes[model.padded(rows, nodes)] = rows, nodes
    samples = {computed: list[float]() for computed in shapes}
    with progress(REPEATS * len(shapes)) as report:
        for _, (computed, shape) in product(range(REPEATS), shapes.items()):
            try:
                if computed in samples:
                    samples[computed] += time_calls(model, length, shape, CALLS)
            except (OutriderError, RuntimeError) as error:  # torch and runtimes raise these
                del samples[computed]
                failures[computed] = str(error).splitlines()[0]
            report("forward passes of {} x {} nodes".format(*computed))
    return GraphTimes({shape: median_interval(each) for shape, each in samples.items()}, failures)


def times_table(times: GraphTimes, fitted: Fit | None, device: str) -> list[str]:
    """The measured times with their intervals, the fit, and the constants of the plan's model."""
    cells = []
    for (rows, nodes), seconds in times.seconds.items():
        median, low, high = (f"{each * 1e3:.2f}" for each in seconds)
        computed = "-" if fitted is None else f"{fitted.seconds(rows, nodes) * 1e3:.2f}"
        cells.append([f"{rows}x{nodes}", f"{median} [{low}, {high}]", computed])
    lines = [
        *aligned(("shape", "measured ms [95 %]", "fit"), cells),
        *(f"{rows}x{nodes}: {why}" for (rows, nodes), why in times.failures.items()),
        f"Rows x nodes at a context of {CONTEXT} slots: medians of {REPEATS} x {CALLS} calls.",
    ]
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
