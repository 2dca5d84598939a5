"""A model shared by threads, batched dynamically.

Calls of the same kind that arrive during a call are computed together in the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from inference.backends import Chosen, Model, Ranked, Segment

T = TypeVar("T")


class _Asked(Generic[T]):
    """One thread's queued call."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        self.answers: Sequence[T | Exception] | None = None


class DynamicBatcher:
    """A Model for drafters, each with rows of its own.

    Dynamic batching without a timer: whoever gets the lock runs every queued call of the same kind.
    """

    def __init__(self, model: Model) -> None:
        self.rows, self.capacity, self.max_nodes = model.rows, model.capacity, model.max_nodes
        self.masks, self.branches = model.masks, model.branches
        self._model = model
        self._turn, self._queue_lock = threading.Lock(), threading.Lock()
        self.queue: dict[Hashable, list[_Asked[Any]]] = {}

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        """Compute this call alone: it is mostly prompt chunks, which would be padded to the
        longest.
        """
        with self._turn:
            return self._model.choose(segments)

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        return self._ask(k, segments, lambda together: self._model.rank(together, k))

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return self._model.padded(rows, nodes)

    def copy_row(self, source: int, target: int, slots: int) -> None:
        with self._turn:
            self._model.copy_row(source, target, slots)

    def _ask(
        self,
        how: Hashable,
        segments: Sequence[Segment],
        call: Callable[[Sequence[Segment]], Sequence[T]],
    ) -> list[T]:
        asked: _Asked[T] = _Asked(segments)
        with self._queue_lock:
            self.queue.setdefault(how, []).append(asked)
        with self._turn:
            if asked.answers is None:
                with self._queue_lock:
                    everybody = self.queue.pop(how)
                answers = call_each(call, [part for one in everybody for part in one.segments])
                for one in everybody:
                    size = len(one.segments)
                    one.answers, answers = answers[:size], answers[size:]
        taken = list[T]()
        for answer in asked.answers or ():
            if isinstance(answer, Exception):
                raise answer
            taken.append(answer)
        return taken


def call_each(
    ask: Callable[[Sequence[Segment]], Sequence[T]], segments: Sequence[Segment]
) -> list[T | Exception]:
    """The model's answer, or the exception, for each segment.

    When a call with several segments fails, each segment is tried alone. So only faulty segments
    fail.
    """
    try:
        return list(ask(segments))
    # A model error is charged to the faulty session only, so that the others go on.
    except Exception as error:
        if len(segments) == 1:
            return [error]
    return [call_each(ask, [segment])[0] for segment in segments]
