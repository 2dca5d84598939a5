"""Measures a model's calls on this machine before it serves: tables of seconds for planning. They
are kept on disk, one file for each subject, so that nothing is measured twice on a machine.

DraftTimes and TargetTimes take these tables. A call of more nodes in as many rows never takes less
time. Where a busy machine made it look so, the nearest monotone table is taken.

Nothing is prefilled and no sequence is touched. Calls read whatever keys lie in the first CONTEXT
slots and write to slots behind them. Whoever takes a row later overwrites these before reading
them. All calls are greedy. Not yet run on CUDA or Neuron hardware.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
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

PROGRESS_SECONDS = 1.0
SCHEMA = 1  # of a kept profile

Tell = Callable[[str], None]


def profile_draft(model: Model, length: int, width: int, tell: Tell) -> dict[int, float]:
    """Return the seconds of ranking 1, 2, 4, ... up to `width` siblings in one call.

    length: positions of the model, which is the longest sequence that it was loaded for

    Widths beyond what the model takes are left out.
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
    """Return the seconds of a forward by its padded shape, up to `rows` rows of `nodes` nodes.

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
    measured = _measure(
        sorted(shapes), lambda shape: model.choose(_chains(model, length, *shapes[shape])), tell
    )
    between = {
        model.padded(row, 3 * node // 2)
        for row in _doublings(rows)
        for node in _doublings(nodes)
        if node > 1 and 3 * node // 2 < nodes
    }
    measured |= {shape: _middle(measured, shape) for shape in between - measured.keys()}
    return dict(sorted(measured.items()))


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


def _measure(
    shapes: Sequence[Shape], call: Callable[[Shape], object], tell: Tell
) -> dict[Shape, float]:
    """Return the seconds of a call by shape, for shapes in the order given, the smallest first.

    They are medians, or values of a fitted line where there is no time to measure.
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
    """Return the nearest times that never fall with more nodes, for each number of rows."""
    smooth: dict[Shape, float] = {}
    for _, group in groupby(sorted(seconds), key=lambda shape: shape[0]):
        shapes = list(group)
        smooth |= zip(shapes, ascending([seconds[shape] for shape in shapes]), strict=True)
    return smooth


def ascending(values: Sequence[float]) -> list[float]:
    """Return the nearest non-decreasing sequence by the sum of absolute differences.

    One outlier then moves no other value far.
    """
    runs: list[list[float]] = []
    for value in values:
        runs.append([value])
        while len(runs) > 1 and median_low(runs[-2]) > median_low(runs[-1]):
            runs[-2:] = [runs[-2] + runs[-1]]
    return [median_low(run) for run in runs for _ in run]


def _dearest(measured: dict[Shape, float], shape: Shape) -> float:
    """Upper estimate of a call's seconds: the largest measured call's, scaled up by the nodes
    computed.
    """
    largest = max(measured, key=np.prod)
    return float(measured[largest] * max(1.0, np.prod(shape) / np.prod(largest)))


def _median_seconds(call: Callable[[], object], share: float) -> float:
    """Return the median seconds of as many calls as fit into `share` seconds, at least one.

    With fewer than TRUSTED calls the last one counts.
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
    """Interpolate linearly between the next smaller and the next larger number of nodes."""
    points = sorted(
        (nodes, seconds) for (rows, nodes), seconds in measured.items() if rows == shape[0]
    )
    nodes, seconds = zip(*points, strict=True)
    return float(np.interp(shape[1], nodes, seconds))


def _chains(model: Model, length: int, rows: int, nodes: int) -> list[Segment]:
    """Return a chain of `nodes` nodes in each of the first `rows` rows, chosen at every node.

    Every target can compute it.
    """
    context = min(CONTEXT, model.capacity - nodes, length - nodes)
    at = np.arange(context, context + nodes, dtype=np.int32)
    return [
        _segment(row, context, at, at, np.tri(nodes, dtype=np.bool_), contexts=1)
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
        kept = read_record(read_json(path, InvalidRequest), _Kept)
        if (kept.schema, kept.subject) != (SCHEMA, subject):
            raise InvalidRequest(f"{path} is not this model's profile")
    except InvalidRequest as error:
        tell(f"a kept profile is not used ({error}): it is measured again")
        return None
    return {(rows, nodes): seconds for rows, nodes, seconds in kept.seconds}


def keep_profile(directory: Path, subject: Subject, times: Mapping[Shape, float]) -> Path | None:
    """Write the seconds, by shape, to the subject's file; return its path.

    The file is written whole or not at all. Returns None where the directory cannot be written to:
    the caller has the times anyway.
    """
    kept = _Kept(SCHEMA, subject, tuple((*shape, seconds) for shape, seconds in times.items()))
    path = subject.path(directory)
    try:
        write_whole(path, json.dumps(asdict(kept)))
    except OSError:
        return None
    return path
