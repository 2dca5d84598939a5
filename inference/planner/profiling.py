"""Measures a model's calls on this machine: tables of seconds for planning. They
are kept on disk, one file for each subject, so that nothing is measured twice on a machine.

DraftTimes and TargetTimes take these tables. A call of more nodes in as many rows never takes less
time. Where a busy machine made it look so, the nearest monotone table is taken.

Nothing is prefilled and no sequence is touched. Calls read whatever keys lie in the first CONTEXT
slots and write to slots behind them, and behind those that hold anything. Whoever takes a row later
overwrites these before reading them. All calls are greedy. Not yet run on CUDA or Neuron hardware.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import median, median_low
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from inference.backends import Model, Segment
from inference.backends.timed import TimeProfile
from inference.errors import InvalidRequest
from inference.file_model import Count, Positive, Record, read_record
from inference.json_file import read_json
from inference.sampling import SamplingParams
from inference.times import TRUSTED, ForwardTimes, Shape
from inference.tree import IntArray
from inference.whole_file import write_whole

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

RANKED = 8
"""Children that a profiled call of the draft ranks at each node."""

PROGRESS_SECONDS, SCHEMA = 1.0, 1  # between two lines of progress; of a kept profile

Tell = Callable[[str], None]


class Survey:
    """Measures a model's calls by shape, a call at a time, the smallest shape first.

    shapes: what the calls are called in the result, in the order in which they are measured
    call: makes the call of a shape
    between: shapes that are interpolated
    """

    def __init__(
        self,
        shapes: Sequence[Shape],
        call: Callable[[Shape], object],
        between: Collection[Shape] = (),
    ) -> None:
        self.spent, self._first = 0.0, -1.0  # seconds without the first call, and of it
        self.most, self.longest = MOST_SECONDS, math.inf  # seconds in all, and of one call
        self.first_free: Callable[[int], int] = lambda row: 0  # slot from which on a row is empty
        self.done = False
        self._shapes, self._call, self._between = shapes, call, between
        self._measured: dict[Shape, float] = {}
        self._calls = self._made()

    def advance(self) -> None:
        """Make one call, or find that all is measured that there is time for."""
        if next(self._calls, self) is self:
            self.done = True

    def run(self, tell: Tell, seconds: float = math.inf) -> dict[Shape, float]:
        """Make calls until all is measured, or so many seconds are spent; return the times.

        tell: hears of progress
        """
        told = time.perf_counter()
        while not (
            self.done or self._first >= seconds or (self._measured and self.spent >= seconds)
        ):
            self.advance()
            if time.perf_counter() - told > PROGRESS_SECONDS:
                told = time.perf_counter()
                tell(f"measured {len(self._measured)} of {len(self._shapes)} shapes")
        return self.times()

    @property
    def telling(self) -> bool:
        """Whether half of the shapes were measured, so that the rest can be estimated."""
        return 2 * len(self._measured) >= len(self._shapes)

    def times(self) -> dict[Shape, float]:
        """Return the seconds by shape: medians, or a fitted line where nothing was measured."""
        line = ForwardTimes()
        for shape, seconds in (self._measured or {self._shapes[0]: self._first}).items():
            line.record(*shape, seconds)
        times = _smooth(
            {one: self._measured.get(one) or line.seconds(*one) for one in self._shapes}
        )
        times |= {shape: _middle(times, shape) for shape in self._between if shape not in times}
        return dict(sorted(times.items()))

    def _made(self) -> Iterator[None]:
        """Make the calls; a median needs TRUSTED of them, with fewer the last one counts."""
        self._first = self._seconds(self._shapes[0])  # brings the weights in
        self.spent = 0.0
        yield
        for index, shape in enumerate(self._shapes):
            left = self.most - self.spent
            if self._measured and _dearest(self._measured, shape) > min(left, self.longest):
                continue
            share, samples = left / (len(self._shapes) - index), list[float]()
            while not samples or (
                len(samples) < CALLS
                and sum(samples) + samples[-1] < share
                and not (len(samples) >= TRUSTED and sum(samples) > ENOUGH_SECONDS)
            ):
                samples.append(self._seconds(shape))
                trusted = len(samples) >= TRUSTED
                self._measured[shape] = median(samples) if trusted else samples[-1]
                yield

    def _seconds(self, shape: Shape) -> float:
        start = time.perf_counter()
        self._call(shape)
        seconds = time.perf_counter() - start
        self.spent += seconds
        return seconds


def survey_draft(model: Model, length: int, width: int) -> Survey:
    """Measure ranking 1, 2, 4, ... up to `width` siblings, as far as the model takes them, in one
    call of one row.

    length: positions of the model, which is the longest sequence that it was loaded for
    """
    widths = _doublings(min(width, model.max_nodes, model.capacity))
    return Survey(
        [(1, size) for size in widths],
        lambda shape: model.rank([_siblings(model, length, shape[1])], RANKED),
    )


def survey_target(model: Model, length: int, rows: int, nodes: int) -> Survey:
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
    survey = Survey(
        sorted(shapes),
        lambda shape: model.choose(_chains(model, length, *shapes[shape], survey.first_free)),
        between,
    )
    return survey


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
    """Upper estimate of a call's seconds: the largest measured one's, scaled up by nodes."""
    largest = max(measured, key=np.prod)
    return float(measured[largest] * max(1.0, np.prod(shape) / np.prod(largest)))


def _middle(measured: dict[Shape, float], shape: Shape) -> float:
    """Interpolate linearly between the next smaller and the next larger number of nodes."""
    points = sorted(
        (nodes, seconds) for (rows, nodes), seconds in measured.items() if rows == shape[0]
    )
    nodes, seconds = zip(*points, strict=True)
    return float(np.interp(shape[1], nodes, seconds))


def _chains(
    model: Model, length: int, rows: int, nodes: int, first_free: Callable[[int], int]
) -> list[Segment]:
    """Return a chain of `nodes` nodes in each of the first `rows` rows, chosen at every node.

    Every target can compute it.
    """
    context = min(CONTEXT, model.capacity - nodes, length - nodes)
    at, mask = np.arange(context, context + nodes, dtype=np.int32), np.tri(nodes, dtype=np.bool_)
    return [
        _segment(row, context, at + max(first_free(row) - context, 0), at, mask, contexts=1)
        for row in range(rows)
    ]


def _siblings(model: Model, length: int, width: int) -> Segment:
    """Return one level of a tree that grows over several calls. Each node has a context of its
    own.
    """
    context = min(CONTEXT, model.capacity - width, length - 1)
    slots = np.arange(context, context + width, dtype=np.int32)
    positions = np.full(width, context, dtype=np.int32)
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


@dataclass(frozen=True)
class Subject(Record):
    """All that a profile's seconds depend on."""

    part: str  # draft or target
    device: str
    model: str  # fingerprint of the weights, and of the artefact where there is one
    dtype: str
    threads: int
    context: int  # cache slots that each call reads
    rows: int  # largest that was measured
    nodes: int  # largest that was measured
    version: str  # Outrider's

    def path(self, directory: Path) -> Path:
        """Return the subject's file in `directory`."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        return directory / f"{self.part}-{digest[:16]}.json"


@dataclass(frozen=True)
class _Kept(Record):
    """The contents of a file."""

    schema: int
    subject: Subject
    seconds: Annotated[tuple[tuple[Count, Count, Positive], ...], Field(min_length=1)]


def load_profile(directory: Path, subject: Subject, tell: Tell) -> dict[Shape, float] | None:
    """Return the seconds kept for the subject, by shape; None where there are none.

    A file that cannot be understood is reported to `tell`, and counts as none.
    """
    path = subject.path(directory)
    if not os.path.exists(path):  # a path that may not be looked at is none
        return None
    try:
        return read_profile(path)[1]
    except InvalidRequest as error:
        tell(f"a kept profile is not used ({error}): it is measured again")
        return None


def read_profile(path: Path) -> tuple[Subject, dict[Shape, float]]:
    """Return a kept file's subject and seconds; raise InvalidRequest where it is spoilt."""
    kept = read_record(read_json(path, InvalidRequest), _Kept)
    if kept.schema != SCHEMA or path.name != kept.subject.path(path.parent).name:
        raise InvalidRequest(f"{path} is not this model's profile")
    return kept.subject, {(rows, nodes): seconds for rows, nodes, seconds in kept.seconds}


def keep_profile(directory: Path, subject: Subject, times: Mapping[Shape, float]) -> Path | None:
    """Write the seconds, by shape, to the subject's file; return its path.

    Returns None where the directory cannot be written to: the caller has the times anyway.
    """
    kept = _Kept(SCHEMA, subject, tuple((*shape, seconds) for shape, seconds in times.items()))
    path = subject.path(directory)
    try:
        write_whole(path, json.dumps(asdict(kept)))
    except OSError:
        return None
    return path
