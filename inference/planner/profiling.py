"""Measures a model's calls on this machine, into a Times.

Nothing is prefilled and no sequence is changed. Calls read the first CONTEXT tokens that a row
caches, or the content of the first CONTEXT slots before any request. They write to slots after all
used ones. The row's next sequence overwrites these before reading them. All calls are greedy. Not
yet run on CUDA or Neuron hardware.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from inference.backends import Model, Segment
from inference.backends.slots import Slots
from inference.planner.prices import widths_of
from inference.sampling import SamplingParams
from inference.times import TRUSTED, Shape, Times
from inference.tree.token_tree import IntArray

CONTEXT = 256
"""Slots of context that a profiled call reads, where the model has so many."""

MOST_SECONDS = 5.0
"""Maximum seconds of measuring a profile; its first two calls, the shortest, are not counted.

Shapes for which there is no time are estimated from the measured ones.
"""

CALLS, ENOUGH_SECONDS = 5, 0.02
"""A shape is called CALLS times, or until TRUSTED calls took ENOUGH_SECONDS. A shape's first
call may be slow: the slowest sample does not count.
"""

WIDE, WIDE_SECONDS = 16, 8.0
"""Nodes of the most informative call after that of one node: it is measured second. And seconds
that it may take before anything else is done.
"""

RANKED = 8
"""Children that a profiled call of the draft ranks at each node."""

PROGRESS_SECONDS = 1.0  # between two lines of progress

Tell = Callable[[str], None]

RowSlots: TypeAlias = Sequence[Slots]
"""The slots of each row, which tell what it caches; none where nothing is cached."""


class Profiler:
    """Measures a model's calls by shape, a call at a time: one node first, then WIDE nodes, then
    the others, the smallest first.

    shapes: of the calls, the smallest first
    call: makes the call of a shape, beside what rows cache
    times: gets a sample for each call

    most: maximum seconds in all; longest: maximum expected seconds of a call.
    """

    def __init__(
        self, shapes: Sequence[Shape], call: Callable[[Shape, RowSlots], object], times: Times
    ) -> None:
        self.most, self.longest = MOST_SECONDS, math.inf
        self.spent, self.times = 0.0, times  # the first call does not count
        self.smallest = shapes[0]
        self._wide = min(shapes, key=lambda shape: (shape[0], abs(shape[1] - WIDE)))
        self._shapes = list(dict.fromkeys([self.smallest, self._wide, *shapes]))
        self._call, self._left = call, list(self._shapes)
        self._samples = dict[Shape, list[float]]()
        self._began = False

    @property
    def done(self) -> bool:
        """Whether all shapes for which there is time are measured."""
        return self._next() is None

    @property
    def is_representative(self) -> bool:
        """Whether half of the shapes were measured, so that the others can be estimated."""
        return 2 * len(self._samples) >= len(self._shapes)

    def advance(self, cached: RowSlots = ()) -> None:
        """Make a call, if there is time for it."""
        shape = self._next()
        if shape is None:
            return
        if not self._began:
            self._began = True
            self._call(shape, cached)  # loads the weights into caches
            return
        start, samples = time.perf_counter(), self._samples.setdefault(shape, [])
        self._call(shape, cached)
        seconds = time.perf_counter() - start
        self.spent += seconds
        samples.append(seconds)
        self.times.observe(*shape, seconds)
        if self._is_enough(samples):
            self._left.remove(shape)

    def run(
        self, tell: Tell, seconds: float = math.inf, wide: float = WIDE_SECONDS
    ) -> dict[Shape, float]:
        """Make calls until all is measured, or so many seconds are spent; return the table.

        The calls of one node and of WIDE nodes are made in any case. The others may take twice the
        seconds each.

        tell: gets lines of progress
        wide: seconds that the call of WIDE nodes may take
        """
        reported, most, longest = time.perf_counter(), self.most, self.longest
        while not self.done and (self.spent < seconds or len(self._samples) < 2):
            first = len(self._samples) < 2
            self.most, self.longest = (wide + most, wide) if first else (most, 2 * seconds)
            self.advance()
            if time.perf_counter() - reported > PROGRESS_SECONDS:
                reported = time.perf_counter()
                tell(f"measured {len(self._samples)} of {len(self._shapes)} shapes")
        self.most, self.longest = most, longest
        return self.table()

    def table(self) -> dict[Shape, float]:
        """The expected seconds by shape, without shapes wider than all measured ones."""
        return {
            shape: self.times.seconds(*shape)
            for shape in sorted(self._shapes)
            if math.prod(shape) <= self.times.widest
        }

    def _next(self) -> Shape | None:
        """The next shape for which there is time."""
        longest = min(self.most - self.spent, self.longest)
        return next(
            (shape for shape in self._left if not self._samples or self._slowest(shape) <= longest),
            None,
        )

    def _slowest(self, shape: Shape) -> float:
        """Seconds of a call if they grew with its nodes from those of a measured one."""
        return min(
            self.times.seconds(*other) * max(1.0, math.prod(shape) / math.prod(other))
            for other in self._samples
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
    widths = widths_of(min(width, model.max_nodes, model.capacity))
    return Profiler(
        [(1, size) for size in widths],
        lambda shape, cached: model.rank([_siblings(model, length, shape[1])], RANKED),
        Times(),
    )


def survey_target(model: Model, length: int, rows: int, nodes: int, times: Times) -> Profiler:
    """Measure forward passes by their padded shape: of 1, 2, 4, ... up to `rows` rows and `nodes`
    nodes each, as far as the model takes them.

    length: positions of the model
    """
    rows, nodes = min(rows, model.rows), min(nodes, model.max_nodes, model.capacity, length)
    shapes = {
        model.padded(row, node): (row, node)
        for row in widths_of(rows)
        for node in reversed(widths_of(nodes))
    }
    return Profiler(
        sorted(shapes),
        lambda shape, cached: model.choose(_chains(model, length, *shapes[shape], cached)),
        times,
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


def _chains(model: Model, length: int, rows: int, nodes: int, cached: RowSlots) -> list[Segment]:
    """Return a chain of `nodes` nodes in each of the first `rows` rows, chosen at every node.

    Every target can compute it.
    """
    most, mask = min(CONTEXT, model.capacity - nodes, length - nodes), np.tri(nodes, dtype=np.bool_)
    segments = list[Segment]()
    for row in range(rows):
        context = _context(cached[row], most) if cached else np.ones((1, most), dtype=np.bool_)
        at = np.arange(context.sum(), context.sum() + nodes, dtype=np.int32)
        free = cached[row].high_water if cached else most
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
