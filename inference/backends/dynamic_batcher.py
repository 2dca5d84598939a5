"""Dynamic batching for a model shared by threads: calls of rank() that arrive during a forward pass
are computed together in the next forward pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from inference.backends import Chosen, Model, Ranked, Segment

T = TypeVar("T")


class _QueuedCall:
    """A call of rank() that waits in the queue."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        self.answers: Sequence[Ranked | Exception] | None = None


class DynamicBatcher:
    """A thread-safe Model for drafters, which use distinct rows.

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


def call_each(
    compute: Callable[[Sequence[Segment]], Sequence[T]], segments: Sequence[Segment]
) -> list[T | Exception]:
    """Return the model's answer or the exception for each segment.

    If several segments fail together, each is computed alone, so that only faulty ones fail.
    """
    try:
        return list(compute(segments))
    # an error of one session must not affect other sessions
    except Exception as error:
        if len(segments) == 1:
            return [error]
    return [call_each(compute, [segment])[0] for segment in segments]
