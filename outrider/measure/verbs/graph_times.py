"""Times forward passes of a few shapes, and fits fixed, per-row and per-node seconds to them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from compile.plan.report import RATES
from inference.backends import Model
from inference.errors import OutriderError
from inference.planner.profiling import CONTEXT, time_calls
from inference.times import Shape
from inference.times_file import Profile
from outrider.measure.figures import Interval, median_interval
from outrider.measure.progress import progress
from outrider.terminal.tables import aligned

CHUNK = 256
"""Nodes of the forward pass that represents a prompt chunk, or fewer if the target has a limit."""

SHAPES: tuple[Shape, ...] = ((1, 1), (1, 16), (1, 64), (4, 16))
"""Rows and nodes of the other forward passes. 1, 16 and 64 nodes show the cost of a node; 4 rows
of 16 nodes, against 1 row of 64, the cost of a row. The chunk is compute-bound.
"""

REPEATS, CALLS = 3, 5
"""Rounds over all shapes (a disturbance affects only one round), and calls per shape and round."""


class GraphTimes(NamedTuple):
    """Median seconds of forward passes with intervals, by padded rows and nodes.

    failures: why other shapes were not measured
    """

    seconds: Mapping[Shape, Interval]
    failures: Mapping[Shape, str]

    def record(self) -> list[dict[str, Any]]:
        """Return the times as plain data for JSON."""
        measured = [(shape, interval._asdict(), "") for shape, interval in self.seconds.items()]
        failed = [(shape, None, why) for shape, why in self.failures.items()]
        return [
            {"rows": rows, "nodes": nodes, "seconds": seconds, "failure": why}
            for (rows, nodes), seconds, why in [*measured, *failed]
        ]

    def profile(self, name: str, source: str) -> Profile | None:
        """Return these times as a profile for --emulate; None if nothing was measured."""
        shapes = tuple((*shape, time.value) for shape, time in sorted(self.seconds.items()))
        return Profile(name, source, "That context costs nothing.", shapes) if shapes else None

    def fit(self) -> Fit | None:
        """Fit the times, with minimal relative errors and non-negative coefficients. Returns None
        for fewer than three times.
        """
        if len(self.seconds) < 3:
            return None
        terms = np.array([[1, rows, rows * nodes] for rows, nodes in self.seconds], np.float64)
        terms /= np.array([[interval.value] for interval in self.seconds.values()])
        best, used = np.zeros(3), [0, 1, 2]
        while used:  # drop the most negative coefficient until none is negative
            best[:] = 0
            best[used] = np.linalg.lstsq(terms[:, used], np.ones(len(terms)), rcond=None)[0]
            if (best >= 0).all():
                break
            used.remove(int(best.argmin()))
        call, row, node = best.tolist()
        return Fit(call, row, node, float(np.abs(terms @ best - 1).max()))


class Fit(NamedTuple):
    """Seconds of a forward pass: call + rows x row + rows x nodes x node, by least squares.

    call: time for weights, layers and host together; passes of one model cannot separate these
    """

    call: float
    row: float
    node: float
    error: float  # maximum error, as a share of the measured time

    def seconds(self, rows: int, nodes: int) -> float:
        """Return the fitted seconds of a forward pass of this shape."""
        return self.call + rows * self.row + rows * nodes * self.node


def time_graphs(model: Model, length: int) -> GraphTimes:
    """Measure every shape that the model supports.

    length: maximum positions of the model
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
    return GraphTimes({shape: median_interval(times) for shape, times in samples.items()}, failures)


def times_table(times: GraphTimes, fitted: Fit | None, device: str) -> list[str]:
    """Format the measured times, with intervals and fit, and the deployment plan's rates."""
    cells = []
    for (rows, nodes), seconds in times.seconds.items():
        median, low, high = (f"{value * 1e3:.2f}" for value in seconds)
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
