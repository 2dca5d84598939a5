"""Measures how long a model's calls take on this machine, and records it in a Times. Not yet run on
CUDA or Neuron hardware.

Calls change no sequence and prefill nothing. They read the first CONTEXT tokens cached in a row, or
whatever its first slots hold, and write to slots after all used ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from inference.backends import Model, Segment
from inference.backends.sequence import Slots
from inference.planner.prices import widths_of
from inference.sampling import SamplingParams
from inference.times import TRUSTED, Shape, Times
from inference.tree.token_tree import IntArray

CONTEXT = 256
"""Slots of context that a profiled call reads, or fewer if the model has fewer."""

MAX_SECONDS = 5.0
"""Maximum seconds to measure a profile, not counting its first two calls, which are the shortest.

Shapes that cannot be measured in this time are estimated from the measured ones.
"""

CALLS, ENOUGH_SECONDS = 5, 0.02
"""A shape is called CALLS times, or until TRUSTED calls took ENOUGH_SECONDS. Its slowest sample
does not count, since the first call may be slow.
"""

WIDE, WIDE_SECONDS = 16, 8.0
"""Nodes of the call to measure second, the most informative one after that of one node; and the
maximum seconds of this call before anything else is done.
"""

RANKED = 8
"""Children that a profiled call of the draft ranks at each node."""

PROGRESS_SECONDS = 1.0  # interval between two lines of progress

Tell = Callable[[str], None]

RowSlots: TypeAlias = Sequence[Slots]
"""The slots of each row, which show what the row caches; empty if nothing is cached."""


class Profiler:
    """Measures a model's calls by shape, one call at a time: first of one node, then of WIDE nodes,
    then the other shapes, the smallest first.

    shapes: shapes of the calls, the smallest first
    call: makes a call of a shape, without changing what rows cache
    times: receives a sample for each call

    most: maximum total seconds; longest: maximum expected seconds of a call.
    """

    def __init__(
        self, shapes: Sequence[Shape], call: Callable[[Shape, RowSlots], object], times: Times
    ) -> None:
        self.most, self.longest = MAX_SECONDS, math.inf
        self.spent, self.times = 0.0, times  # the first call does not count
        self.smallest = shapes[0]
        self._wide = min(shapes, key=lambda shape: (shape[0], abs(shape[1] - WIDE)))
        self._shapes = list(dict.fromkeys([self.smallest, self._wide, *shapes]))
        self._call, self._left = call, list(self._shapes)
        self._began = False

    @property
    def done(self) -> bool:
        """Whether all shapes that the remaining time allows are measured."""
        return self._next() is None

    @property
    def is_representative(self) -> bool:
        """Whether half of the shapes are measured, so that the others can be estimated."""
        return 2 * len(self._measured) >= len(self._shapes)

    def advance(self, cached: RowSlots = ()) -> None:
        """Make the next call, if there is time for it."""
        shape = self._next()
        if shape is None:
            return
        if not self._began:
            self._began = True
            self._call(shape, cached)  # loads the weights into caches
            return
        start = time.perf_counter()
        self._call(shape, cached)
        seconds = time.perf_counter() - start
        self.spent += seconds
        self.times.observe(*shape, seconds)
        if self._is_enough(self.times.samples(*shape)):
            self._left.remove(shape)

    def run(
        self, tell: Tell, seconds: float = math.inf, wide: float = WIDE_SECONDS
    ) -> dict[Shape, float]:
        """Make calls until all shapes are measured or the time is spent. Return the table.

        The calls of one node and of WIDE nodes are made in any case. Each other call may take twice
        the seconds.

        tell: called with lines of progress
        wide: maximum seconds of the call of WIDE nodes
        """
        reported, total, longest = time.perf_counter(), self.most, self.longest
        while not self.done and (self.spent < seconds or len(self._measured) < 2):
            first = len(self._measured) < 2
            self.most, self.longest = (wide + total, wide) if first else (total, 2 * seconds)
            self.advance()
            if time.perf_counter() - reported > PROGRESS_SECONDS:
                reported = time.perf_counter()
                tell(f"measured {len(self._measured)} of {len(self._shapes)} shapes")
        self.most, self.longest = total, longest
        return self.table()

    def table(self) -> dict[Shape, float]:
        """Return the expected seconds by shape, without shapes wider than all measured ones."""
        return {
            shape: self.times.seconds(*shape)
            for shape in sorted(self._shapes)
            if math.prod(shape) <= self.times.widest
        }

    @property
    def _measured(self) -> list[Shape]:
        return [shape for shape in self._shapes if self.times.samples(*shape)]

    def _next(self) -> Shape | None:
        longest = min(self.most - self.spent, self.longest)
        return next((shape for shape in self._left if self._slowest(shape) <= longest), None)

    def _slowest(self, shape: Shape) -> float:
        """Return a call's seconds, in proportion to nodes from a measured shape; 0 without any."""
        growth = {key: max(1.0, math.prod(shape) / math.prod(key)) for key in self._measured}
        return min((self.times.seconds(*key) * growth[key] for key in growth), default=0.0)

    def _is_enough(self, samples: Sequence[float]) -> bool:
        """Whether a shape has enough samples, or all that its share of the time allows."""
        share = (self.most - self.spent + sum(samples)) / len(self._left)
        enough = len(samples) >= TRUSTED and sum(samples) > ENOUGH_SECONDS
        return enough or len(samples) >= CALLS or sum(samples) + samples[-1] >= share


def survey_draft(model: Model, length: int, width: int) -> Profiler:
    """Return a Profiler of calls of one row that rank 1, 2, 4, ... up to `width` siblings, or as
    many as the model takes.

    length: maximum sequence length for which the model was loaded
    """
    widths = widths_of(min(width, model.max_nodes, model.capacity))
    return Profiler(
        [(1, size) for size in widths],
        lambda shape, cached: model.rank([_siblings(model, length, shape[1])], RANKED),
        Times(),
    )


def survey_target(model: Model, length: int, rows: int, nodes: int, times: Times) -> Profiler:
    """Return a Profiler of forward passes by padded shape: of 1, 2, 4, ... up to `rows` rows and
    `nodes` nodes each, or as many as the model takes.

    length: maximum sequence length for which the model was loaded
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
    """Return the seconds of each of `calls` forward passes of a shape, padding included. An earlier
    pass, which may compile or record a graph, does not count.

    length: maximum sequence length for which the model was loaded
    """
    segments, samples = _chains(model, length, *shape, ()), list[float]()
    model.choose(segments)
    for _ in range(calls):
        start = time.perf_counter()
        model.choose(segments)
        samples.append(time.perf_counter() - start)
    return samples


def _chains(model: Model, length: int, rows: int, nodes: int, cached: RowSlots) -> list[Segment]:
    """Return a chain, which every target can compute, of `nodes` nodes for each of the first `rows`
    rows, all of them picked.
    """
    span, mask = min(CONTEXT, model.capacity - nodes, length - nodes), np.tri(nodes, dtype=np.bool_)
    segments = list[Segment]()
    for row in range(rows):
        context = _context(cached[row], span) if cached else np.ones((1, span), dtype=np.bool_)
        at = np.arange(context.sum(), context.sum() + nodes, dtype=np.int32)
        free = cached[row].high_water if cached else span
        segments.append(_segment(row, context, at + (free - at[0]), at, mask))
    return segments


def _context(slots: Slots, limit: int) -> NDArray[np.bool_]:  # [1, S]
    """Return which slots hold a row's first tokens, at most `limit`."""
    first = slots.committed & (slots.positions < limit)
    return first[None, : first.tobytes().rfind(True) + 1]


def _siblings(model: Model, length: int, width: int) -> Segment:
    """Return a level of a tree that grows over several calls. Each node has its own context."""
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
