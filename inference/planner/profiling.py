"""Measures what a model's calls take on this machine, before it serves: a table of seconds for
DraftTimes and TargetTimes.

A call of more nodes in as many rows never takes less. Where a busy machine made it look so, the
table is the nearest that does not say so.

Nothing is prefilled and no sequence is touched: calls read whatever keys lie in the first CONTEXT
slots and write into slots behind them, which whoever takes a row later overwrites before it reads
them. All calls are greedy. Not yet run on CUDA or Neuron hardware.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from statistics import median, median_low

import numpy as np
from numpy.typing import NDArray

from inference.backends import Model, Segment
from inference.backends.timed import TimeProfile
from inference.sampling import SamplingParams
from inference.times import TRUSTED, ForwardTimes, Shape
from inference.tree import IntArray

CONTEXT = 256
"""Slots of context that a profiled call reads, where the model has so many."""

MOST_SECONDS = 5.0
"""Of one profile, its first two calls apart, which are the shortest; what there is no time for
is estimated from what was measured.
"""

CALLS, ENOUGH_SECONDS = 5, 0.02
"""A shape is called so often, or until that took so long and there are TRUSTED calls. The first
call of a shape may be slow: medians ignore it.
"""

RANKED = 8
"""Children that a profiled call of the draft ranks at each node."""

PROGRESS_SECONDS = 1.0

Tell = Callable[[str], None]


def profile_draft(model: Model, length: int, width: int, tell: Tell) -> dict[int, float]:
    """Seconds of ranking 1, 2, 4, ... up to `width` siblings in one call, as far as the model takes
    so many.

    length: positions that the model has, which is the longest sequence it was loaded for.
    """
    widths = list(_doublings(min(width, model.max_nodes, model.capacity)))
    measured = _measure(
        [(1, size) for size in widths],
        lambda shape: model.rank([_siblings(model, length, shape[1])], RANKED),
        tell,
    )
    return {size: seconds for (_, size), seconds in measured.items()}


def profile_target(
    model: Model, length: int, rows: int, nodes: int, tell: Tell
) -> dict[Shape, float]:
    """Seconds of a forward by what it is computed as, up to `rows` rows of `nodes` nodes, as far as
    the model takes so many.

    1, 2, 4, ... rows and nodes are measured; for 3, 6, 12, ... nodes, where they are a shape of
    their own, the middle is taken. length: positions that the model has.
    """
    rows, nodes = min(rows, model.rows), min(nodes, model.max_nodes, model.capacity, length)
    shapes = {
        model.padded(row, node): (row, node)
        for row in _doublings(rows)
        for node in reversed(list(_doublings(nodes)))
    }
    measured = _measure(
        sorted(shapes), lambda shape: model.choose(_chains(model, length, *shapes[shape])), tell
    )
    between = {
        model.padded(row, 3 * node // 2)
        for row in _doublings(rows)
        for node in _doublings(nodes)
        if node > 1 and 3 * node // 2 < nodes
    }
    return dict(
        sorted(
            (
                measured | {shape: _middle(measured, shape) for shape in between - measured.keys()}
            ).items()
        )
    )


def emulated_target(profile: TimeProfile, rows: int, nodes: int) -> dict[Shape, float]:
    """The same for a target whose time is emulated: the profile's own arithmetic at CONTEXT
    slots, nothing is measured.
    """
    shapes = {
        profile.padded(row, node) for row in range(1, rows + 1) for node in range(1, nodes + 1)
    }
    return {shape: profile.seconds(*shape, CONTEXT) for shape in sorted(shapes)}


def _doublings(most: int) -> Iterator[int]:
    """1, 2, 4, ... and `most`."""
    size = 1
    while size < most:
        yield size
        size *= 2
    yield most


def _measure(
    shapes: Sequence[Shape], call: Callable[[Shape], object], tell: Tell
) -> dict[Shape, float]:
    """Seconds of a call by shape, in the order given, the smallest first: of medians, and of a
    line where there may be no time for calls.
    """
    call(shapes[0])  # brings the weights in
    start = told = time.perf_counter()
    measured: dict[Shape, float] = {}
    for index, shape in enumerate(shapes):
        left = start + MOST_SECONDS - time.perf_counter()
        if measured and _dearest(measured, shape) > left:
            continue
        measured[shape] = _median_seconds(partial(call, shape), left / (len(shapes) - index))
        if time.perf_counter() - told > PROGRESS_SECONDS:
            told = time.perf_counter()
            tell(f"measured {len(measured)} of {len(shapes)} shapes")
    line = ForwardTimes()
    for shape, seconds in measured.items():
        line.record(*shape, seconds)
    return _smooth(
        {shape: measured[shape] if shape in measured else line.seconds(*shape) for shape in shapes}
    )


def _smooth(seconds: dict[Shape, float]) -> dict[Shape, float]:
    """The nearest times, those of each number of rows apart, that never fall from one number of
    nodes to the next.
    """
    smooth: dict[Shape, float] = {}
    for _, group in groupby(sorted(seconds), key=lambda shape: shape[0]):
        shapes = list(group)
        smooth |= zip(shapes, ascending([seconds[shape] for shape in shapes]), strict=True)
    return smooth


def ascending(values: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls, by the sum of the distances: one value that is far
    off moves no other far.
    """
    runs: list[list[float]] = []
    for value in values:
        runs.append([value])
        while len(runs) > 1 and median_low(runs[-2]) > median_low(runs[-1]):
            runs[-2:] = [runs[-2] + runs[-1]]
    return [median_low(run) for run in runs for _ in run]


def _dearest(measured: dict[Shape, float], shape: Shape) -> float:
    """Seconds that a call may take at worst: what the largest so far took, in proportion where
    it computes more nodes than that.
    """
    largest = max(measured, key=np.prod)
    return float(measured[largest] * max(1.0, np.prod(shape) / np.prod(largest)))


def _median_seconds(call: Callable[[], object], share: float) -> float:
    """Of as many calls as fit into `share` seconds, the first always among them; while there are
    fewer than TRUSTED, the last.
    """
    samples = [_seconds(call)]
    while (
        len(samples) < CALLS
        and sum(samples) + samples[-1] < share
        and not (len(samples) >= TRUSTED and sum(samples) > ENOUGH_SECONDS)
    ):
        samples.append(_seconds(call))
    return median(samples) if len(samples) >= TRUSTED else samples[-1]


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _middle(measured: dict[Shape, float], shape: Shape) -> float:
    """On the line between the next smaller and the next larger number of nodes in as many rows."""
    points = sorted(
        (nodes, seconds) for (rows, nodes), seconds in measured.items() if rows == shape[0]
    )
    nodes, seconds = zip(*points, strict=True)
    return float(np.interp(shape[1], nodes, seconds))


def _chains(model: Model, length: int, rows: int, nodes: int) -> list[Segment]:
    """A chain of so many nodes in each of the first rows, chosen at every node: what every
    target takes.
    """
    context = min(CONTEXT, model.capacity - nodes, length - nodes)
    at = np.arange(context, context + nodes, dtype=np.int32)
    return [
        _segment(row, context, at, at, np.tri(nodes, dtype=np.bool_), contexts=1)
        for row in range(rows)
    ]


def _siblings(model: Model, length: int, width: int) -> Segment:
    """A level of a tree that grows over several calls: each node has a context of its own."""
    context = min(CONTEXT, model.capacity - width, length - 1)
    slots, positions = (
        np.arange(context, context + width, dtype=np.int32),
        np.full(width, context, dtype=np.int32),
    )
    return _segment(0, context, slots, positions, np.eye(width, dtype=np.bool_), contexts=width)


def _segment(
    row: int,
    context: int,
    slots: IntArray,
    positions: IntArray,
    mask: NDArray[np.bool_],
    *,
    contexts: int,
) -> Segment:
    nodes = len(slots)
    return Segment(
        row, np.ones(nodes, dtype=np.int32), slots, positions,
        np.ones((contexts, context), dtype=np.bool_), mask,
        np.arange(nodes, dtype=np.int32), SamplingParams(),
    )  # fmt: skip
