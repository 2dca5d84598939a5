"""Models that wrap another: drafts shared by threads, emulated speed, and small vocabularies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from inference.backends import Chosen, Model, Ranked, Segment
from inference.backends.batch import BatchShape, call_each
from inference.times_file import Profile

T = TypeVar("T")

EMULATED = "emulated "
"""Prefix of the log line that reports the accuracy of an emulation."""


class _QueuedCall:
    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        self.answers: Sequence[Ranked | Exception] | None = None


class DynamicBatcher:
    """A thread-safe Model for drafters, which use distinct rows: calls of rank() that arrive during
    a forward pass are computed together in the next forward pass.

    There is no timer: the thread that gets the lock computes all queued calls of rank() with the
    same number of children.
    """

    def __init__(self, model: Model) -> None:
        self.rows, self.capacity, self.max_nodes = model.rows, model.capacity, model.max_nodes
        self.masks, self.branches = model.masks, model.branches
        self._model = model
        self._turn, self._queue_lock = threading.Lock(), threading.Lock()
        self.queue: dict[int, list[_QueuedCall]] = {}  # by number of children

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        """Compute these segments without batching: most are prompt chunks, which would be slow if
        padded to the longest one.
        """
        with self._turn:
            return self._model.choose(segments)

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        call = _QueuedCall(segments)
        with self._queue_lock:
            self.queue.setdefault(k, []).append(call)
        with self._turn:
            if call.answers is None:
                self._answer_queue(k)
        answers = list[Ranked]()
        for answer in call.answers or ():
            if isinstance(answer, Exception):
                raise answer
            answers.append(answer)
        return answers

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return self._model.padded(rows, nodes)

    def copy_row(self, source: int, target: int, slots: int) -> None:
        with self._turn:
            self._model.copy_row(source, target, slots)

    def _answer_queue(self, k: int) -> None:
        with self._queue_lock:
            calls = self.queue.pop(k)
        segments = [segment for call in calls for segment in call.segments]
        answers = call_each(lambda together: self._model.rank(together, k), segments)
        for call in calls:
            size = len(call.segments)
            call.answers, answers = answers[:size], answers[size:]


class TimedModel:
    """A Model that emulates a target's speed: it returns the results of a small real model, delayed
    to the time in a profile. For studies of latency and capacity without the device.

    If there are many overruns, results reflect this machine rather than the profile: use a smaller
    model.

    real: the real model
    overruns: forward passes in which the real model took longer than the profile's time
    emulated_seconds: sum of the profile's times
    late_seconds: additional time, from overruns and from waking late on a busy machine
    """

    def __init__(self, model: Model, profile: Profile) -> None:
        self.rows, self.capacity, self.max_nodes = model.rows, model.capacity, model.max_nodes
        self.masks, self.branches = model.masks, model.branches
        self.real, self.profile = model, profile
        self.forwards = self.overruns = 0
        self.emulated_seconds = self.late_seconds = 0.0

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        return self._timed(segments, lambda: self.real.choose(segments))

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        return self._timed(segments, lambda: self.real.rank(segments, k))

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return self.profile.padded(rows, nodes)

    def copy_row(self, source: int, target: int, slots: int) -> None:
        """Copy a row without emulation, since copies take much less time than forward passes."""
        self.real.copy_row(source, target, slots)

    def account(self) -> str:
        """Return a line that reports the accuracy of the emulated times."""
        late = f"{self.late_seconds * 1e3:.1f} ms late in {self.emulated_seconds * 1e3:.1f} ms"
        return (
            f"{EMULATED}{self.profile.name}: {self.forwards} forward passes, {self.overruns} "
            f"longer than the profile says, {late}"
        )

    def _timed(self, segments: Sequence[Segment], forward: Callable[[], T]) -> T:
        start, shape = time.perf_counter(), BatchShape.of(segments)
        seconds = self.profile.seconds(shape.rows, shape.nodes, shape.slots)
        answer = forward()
        self.forwards += 1
        self.emulated_seconds += seconds
        self.overruns += time.perf_counter() - start > seconds
        while (remaining := start + seconds - time.perf_counter()) > 0:
            time.sleep(remaining)
        self.late_seconds -= remaining
        return answer


class KnownTokens:
    """A draft for a target with a larger vocabulary: ids outside the draft's are replaced by 0, so
    that it can continue after such tokens.

    limit: size of the draft's vocabulary
    """

    def __init__(self, model: Model, limit: int) -> None:
        self._model, self._known = model, limit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        return self._model.choose([self._readable(segment) for segment in segments])

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        return self._model.rank([self._readable(segment) for segment in segments], k)

    def _readable(self, segment: Segment) -> Segment:
        valid = segment.tokens < self._known
        return segment._replace(tokens=np.where(valid, segment.tokens, 0).astype(np.int32))
