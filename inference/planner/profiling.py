"""Measures a model's calls on this machine: tables of seconds for planning.

A Times takes such a table. A call of more nodes in as many rows never
takes less time. Where a busy machine made it look so, the nearest monotone table is taken.

Nothing is prefilled and no sequence is touched. Calls read the first CONTEXT tokens that a row
keeps, or whatever lies in the first CONTEXT slots before any text. They write to slots behind all
that hold anything. Whoever takes a row later overwrites these before reading them. All calls are
greedy. Not yet run on CUDA or Neuron hardware.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby
from statistics import median, median_low
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from inference.backends import Model, Segment
from inference.backends.slots import Slots
from inference.backends.timed import TimeProfile
from inference.sampling import SamplingParams
from inference.times import TRUSTED, Shape, Times
from inference.tree import IntArray

CONTEXT = 256
"""Slots of context that a profiled call reads, where the model has so many."""

MOST_SECONDS = 5.0
"""Seconds that measuring one profile may take; its first two calls, the shortest, are not counted.

Shapes that there is no time for are estimated from those that were measured.
"""

CALLS, ENOUGH_SECONDS = 5, 0.02
"""A shape is called CALLS times, or until TRUSTED calls took ENOUGH_SECONDS. A shape's first
call may be slow: medians ignore it.
"""

WIDE, WIDE_SECONDS = 16, 8.0
"""Nodes of the call that says most beside that of one node: it is measured second. And seconds that
it may take before anything else is done.
"""

RANKED = 8
"""Children that a profiled call of the draft ranks at each node."""

PROGRESS_SECONDS = 1.0  # between two lines of progress

Tell = Callable[[str], None]

RowSlots: TypeAlias = Sequence[Slots]
"""The slots of each row, which tell what it keeps; none where nothing is kept."""


class Profiler:
    """Measures a model's calls by shape, a call at a time: one node first, then WIDE nodes, then
    the others, the smallest first.

    shapes: what the calls are called in the result, the smallest first
    call: makes the call of a shape, beside what rows keep
    between: shapes that are interpolated

    most: seconds to spend in all; longest: seconds that one call may take, as far as one can tell.
    """

    def __init__(
        self,
        shapes: Sequence[Shape],
        call: Callable[[Shape, RowSlots], object],
        between: Collection[Shape] = (),
    ) -> None:
        self.most, self.longest = MOST_SECONDS, math.inf
        self.spent, self.measured = 0.0, dict[Shape, float]()  # the first call does not count
        self.smallest = shapes[0]
        self._wide = min(shapes, key=lambda shape: (shape[0], abs(shape[1] - WIDE)))
        self._shapes = list(dict.fromkeys([self.smallest, self._wide, *shapes]))
        self._call, self._between = call, between
        self._left, self._samples = list(self._shapes), defaultdict[Shape, list[float]](list)
        self._began = False

    @property
    def done(self) -> bool:
        """Whether all is measured that there is time for."""
        return self._next() is None

    @property
    def telling(self) -> bool:
        """Whether half of the shapes were measured, so that the rest can be estimated."""
        return 2 * len(self.measured) >= len(self._shapes)

    def advance(self, kept: RowSlots = ()) -> None:
        """Make one call, if there is time for one."""
        shape = self._next()
        if shape is None:
            return
        if not self._began:
            self._began = True
            self._call(shape, kept)  # brings the weights in
            return
        start, samples = time.perf_counter(), self._samples[shape]
        self._call(shape, kept)
        seconds = time.perf_counter() - start
        self.spent += seconds
        samples.append(seconds)
        trusted = len(samples) >= TRUSTED  # else the last one counts
        self.measured[shape] = median(samples) if trusted else seconds
        if self._is_enough(samples):
            self._left.remove(shape)

    def run(
        self, tell: Tell, seconds: float = math.inf, wide: float = WIDE_SECONDS
    ) -> dict[Shape, float]:
        """Make calls until all is measured, or so many seconds are spent; return the times.

        The calls of one node and of WIDE nodes are made in any case. The others may take twice the
        seconds each.

        tell: hears of progress
        wide: seconds that the call of WIDE nodes may take
        """
        told, most, longest = time.perf_counter(), self.most, self.longest
        while not self.done and (self.spent < seconds or len(self.measured) < 2):
            telling = len(self.measured) < 2
            self.most, self.longest = (wide + most, wide) if telling else (most, 2 * seconds)
            self.advance()
            if time.perf_counter() - told > PROGRESS_SECONDS:
                told = time.perf_counter()
                tell(f"measured {len(self.measured)} of {len(self._shapes)} shapes")
        self.most, self.longest = most, longest
        return self.times()

    def times(self) -> dict[Shape, float]:
        """Return the seconds by shape: medians, and what lies between these. Shapes beyond all
        that was measured are left out.
        """
        times, most = _smooth(self.measured), max(map(math.prod, self.measured), default=0)
        law = Times()
        law.trust(times)
        for shape in (*self._shapes, *self._between):
            if shape not in times and math.prod(shape) <= most:
                times[shape] = law.seconds(*shape)
        return dict(sorted(times.items()))

    def _next(self) -> Shape | None:
        """The next shape that there is time for."""
        longest = min(self.most - self.spent, self.longest)
        return next(
            (
                shape
                for shape in self._left
                if not self.measured or _dearest(self.measured, shape) <= longest
            ),
            None,
        )

    def _is_enough(self, samples: Sequence[float]) -> bool:
        """Whether these samples of a shape are enough, or all that its share of the time allows."""
        share = (self.most - self.spent + sum(samples)) / len(self._left)
        enough = len(samples) >= TRUSTED and sum(samples) > ENOUGH_SECONDS
        return enough or len(samples) >= CALLS or sum(samples) + samples[-1] >= share


def survey_draft(model: Model, length: int, width: int) -> Profiler:
    """Measure ranking 1, 2, 4, ... up to `width` siblings, as far as the model takes them, in one
    call of one row.

    length: positions of the model, which is the longest sequence that it was loaded for
    """
    widths = _doublings(min(width, model.max_nodes, model.capacity))
    return Profiler(
        [(1, size) for size in widths],
        lambda shape, kept: model.rank([_siblings(model, length, shape[1])], RANKED),
    )


def survey_target(model: Model, length: int, rows: int, nodes: int) -> Profiler:
    """Measure a forward by its padded shape, up to `rows` rows of `nodes` nodes.

    length: positions of the model

    1, 2, 4, ... rows and nodes are measured. 3, 6, 12, ... nodes are interpolated, where they are a
    shape of their own. Shapes beyond what the model takes are left out.
    """
    rows, nodes = min(rows, model.rows), min(nodes, model.max_nodes, model.capacity, length)
    shapes = {
        model.padded(row, node): (row, node)
        for row in _doublings(rows)
        for node in reversed(list(_doublings(nodes)))
    }
    between = {
        model.padded(row, 3 * node // 2)
        for row in _doublings(rows)
        for node in _doublings(nodes)
        if node > 1 and 3 * node // 2 < nodes
    }
    return Profiler(
        sorted(shapes),
        lambda shape, kept: model.choose(_chains(model, length, *shapes[shape], kept)),
        between,
    )


def time_calls(model: Model, length: int, shape: Shape, calls: int) -> list[float]:
    """Seconds of each of some forward passes of a shape, padding included. A first one, which may
    compile or record a graph, is made before and does not count.

    length: positions of the model
    """
    segments, samples = _chains(model, length, *shape, ()), list[float]()
    model.choose(segments)
    for _ in range(calls):
        start = time.perf_counter()
        model.choose(segments)
        samples.append(time.perf_counter() - start)
    return samples


def emulated_target(profile: TimeProfile, rows: int, nodes: int) -> dict[Shape, float]:
    """Return the seconds by shape that a profile states at CONTEXT slots. Nothing is measured."""
    shapes = {
        profile.padded(row, node) for row in range(1, rows + 1) for node in range(1, nodes + 1)
    }
    return {shape: profile.seconds(*shape, CONTEXT) for shape in sorted(shapes)}


def _doublings(most: int) -> Iterator[int]:
    """Yield 1, 2, 4, ... and `most`."""
    size = 1
    while size < most:
        yield size
        size *= 2
    yield most


def _smooth(seconds: dict[Shape, float]) -> dict[Shape, float]:
    """Return the nearest times that never fall with more nodes, for each number of rows."""
    smooth: dict[Shape, float] = {}
    for _, group in groupby(sorted(seconds), key=lambda shape: shape[0]):
        shapes = list(group)
        smooth |= zip(shapes, ascending([seconds[shape] for shape in shapes]), strict=True)
    return smooth


def ascending(values: Sequence[float]) -> list[float]:
    """Return the nearest non-decreasing sequence by the sum of absolute differences, in which one
    outlier moves no other value far.
    """
    runs: list[list[float]] = []
    for value in values:
        runs.append([value])
        while len(runs) > 1 and median_low(runs[-2]) > median_low(runs[-1]):
            runs[-2:] = [runs[-2] + runs[-1]]
    return [median_low(run) for run in runs for _ in run]


def _dearest(measured: dict[Shape, float], shape: Shape) -> float:
    """Estimate a call's seconds as if they grew with its nodes from those of a measured one."""
    nodes = math.prod(shape)
    return min(seconds * max(1.0, nodes / math.prod(other)) for other, seconds in measured.items())


def _chains(model: Model, length: int, rows: int, nodes: int, kept: RowSlots) -> list[Segment]:
    """Return a chain of `nodes` nodes in each of the first `rows` rows, chosen at every node.

    Every target can compute it.
    """
    most, mask = min(CONTEXT, model.capacity - nodes, length - nodes), np.tri(nodes, dtype=np.bool_)
    segments = list[Segment]()
    for row in range(rows):
        context = _context(kept[row], most) if kept else np.ones((1, most), dtype=np.bool_)
        at = np.arange(context.sum(), context.sum() + nodes, dtype=np.int32)
        free = kept[row].high_water if kept else most
        segments.append(_segment(row, context, at + (free - at[0]), at, mask))
    return segments


def _context(slots: Slots, most: int) -> NDArray[np.bool_]:  # [1, S]
    """Return which slots hold the first tokens of a row, up to `most`."""
    first = slots.committed & (slots.positions < most)
    return first[None, : first.tobytes().rfind(True) + 1]


def _siblings(model: Model, length: int, width: int) -> Segment:
    """Return one level of a tree that grows over several calls. Each node has a context of its
    own.
    """
    context = min(CONTEXT, model.capacity - width, length - 1)
    slots = np.arange(context, context + width, dtype=np.int32)
    positions = np.full(width, context, dtype=np.int32)
    contexts = np.ones((width, context), dtype=np.bool_)
    return _segment(0, contexts, slots, positions, np.eye(width, dtype=np.bool_))


def _segment(
    row: int,
    context: NDArray[np.bool_],
    slots: IntArray,
    positions: IntArray,
    mask: NDArray[np.bool_],
) -> Segment:
    nodes = len(slots)
    return Segment(
        row, np.ones(nodes, dtype=np.int32), slots, positions, context, mask,
        np.arange(nodes, dtype=np.int32), SamplingParams(),
    )  # fmt: skip
