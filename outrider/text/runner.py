"""Runs requests on threads, for the terminal, the HTTP endpoint, Python and measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Generic, TypeAlias, TypeVar

from inference.errors import InvalidRequest, OutriderError
from outrider.text.completion import Completion
from outrider.text.pieces import Piece

Part = TypeVar("Part")
"""A part of the output that a task reports, such as a Piece."""

Task: TypeAlias = Callable[[Callable[[Part], None], Event], Completion]
"""Runs a request: reports the parts of its output, and ends when the event is set. An example is
Client.complete() with a request.
"""

Put: TypeAlias = Callable[[int, "Part | Completion | OutriderError"], None]
"""Receives each part with the index of its task, and at the end the task's Completion, or the error
that prevented it. Called on the threads of the tasks.
"""


class TextRun(Generic[Part]):
    """Tasks that run on `workers` daemon threads, started in their order.

    Iterate over the parts as they arrive, each with the index of its task; a task's last item is
    its Completion. An error that a task raises ends the iteration, which may be resumed. Leaving
    the context ends the tasks, and waits for their threads.

    put: receives the parts instead of the iteration
    """

    def __init__(
        self, tasks: Sequence[Task[Part]], workers: int = 1, put: Put[Part] | None = None
    ) -> None:
        self._unfinished, self._end = len(tasks), Event()
        self._parts = SimpleQueue[tuple[int, Part | Completion | OutriderError]]()
        self._put = put or (lambda *item: self._parts.put(item))
        self._waiting = SimpleQueue[tuple[int, Task[Part]]]()
        for item in enumerate(tasks):
            self._waiting.put(item)
        self._threads = [
            Thread(target=self._work, name="text", daemon=True) for _ in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Iterator[tuple[int, Part | Completion]]:
        while self._unfinished:
            index, item = self._parts.get()
            self._unfinished -= isinstance(item, Completion | OutriderError)
            if isinstance(item, OutriderError):
                raise item
            yield index, item

    def __enter__(self) -> TextRun[Part]:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()
        self.join()

    def completions(self) -> list[Completion]:
        """Iterate to the end. Returns the completions in the order of the tasks."""
        records = {index: item for index, item in self if isinstance(item, Completion)}
        return [records[index] for index in sorted(records)]

    def end(self) -> None:
        """End all tasks now. The iteration still yields the parts up to their ends."""
        self._end.set()

    @property
    def is_running(self) -> bool:
        """Whether a task is still running."""
        return any(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        """Wait until no task is running."""
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            try:
                index, task = self._waiting.get_nowait()
            except Empty:
                return
            last: Completion | OutriderError = OutriderError(
                "an internal error ended the text: the log has details"
            )
            try:
                last = task(partial(self._put, index), self._end)
            except OutriderError as error:
                last = error
            finally:
                self._put(index, last)


class CompletionStream(Iterator[Piece]):
    """An iterator over the pieces of one output as they are generated.

    Leaving its context ends generation at once. Afterwards `result` is the whole completion. If an
    error ended generation, the iteration raises it.
    """

    def __init__(self, task: Task[Piece]) -> None:
        self._run = TextRun([task])
        self._ended: Completion | OutriderError | None = None

    def __repr__(self) -> str:
        state = "running" if self._ended is None else repr(self._ended)
        return f"CompletionStream({state})"

    @property
    def result(self) -> Completion:
        """The completion. Raises InvalidRequest before the iteration has ended."""
        if not isinstance(self._ended, Completion):
            raise InvalidRequest("the text is not finished: iterate over the stream to its end")
        return self._ended

    def end(self) -> None:
        """End generation now. The iteration still yields the pieces generated so far."""
        self._run.end()

    def close(self) -> None:
        """End generation, and wait for its thread. Idempotent."""
        self._run.__exit__()

    def __next__(self) -> Piece:
        if self._ended is None:
            try:
                _, item = next(iter(self._run))
            except OutriderError as error:
                self._ended = error
                raise
            if isinstance(item, Piece):
                return item
            self._ended = item
        if isinstance(self._ended, OutriderError):
            raise self._ended
        self._ended.raise_failure()
        raise StopIteration

    def __enter__(self) -> CompletionStream:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
