"""Runs tasks that make texts on threads, and iterates over the parts that they hand over."""

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
"""A part of a text that a task hands over, such as a piece of it."""

Task: TypeAlias = Callable[[Callable[[Part], None], Event], Completion]
"""Makes a text: hands parts over, and ends when the event is set."""

Put: TypeAlias = Callable[[int, "Part | Completion | OutriderError"], None]
"""Receives each part with the index of its task, and at last the record of the text, or the error
that prevented one.
"""


def start_tasks(
    tasks: Sequence[Task[Part]], put: Put[Part], end: Event, workers: int
) -> list[Thread]:
    """Run tasks on `workers` daemon threads, in their order. `put` is called on these threads."""
    waiting = SimpleQueue[tuple[int, Task[Part]]]()
    for item in enumerate(tasks):
        waiting.put(item)

    def work() -> None:
        while True:
            try:
                index, task = waiting.get_nowait()
            except Empty:
                return
            made: Completion | OutriderError = OutriderError(
                "a text was ended by an error of this program: its log has it"
            )
            try:
                made = task(partial(put, index), end)
            except OutriderError as error:
                made = error
            finally:
                put(index, made)

    threads = [Thread(target=work, name="text", daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    return threads


class TextRun(Generic[Part]):
    """Texts in the making on `workers` threads.

    Iterate over their parts as they come, each with the index of its task; the Completion is the
    last of a text. An error that prevents a text ends the iteration, which may be taken up again.
    """

    def __init__(self, tasks: Sequence[Task[Part]], workers: int = 1) -> None:
        self._left, self._end = len(tasks), Event()
        self._queue = SimpleQueue[tuple[int, Part | Completion | OutriderError]]()
        put = self._queue.put
        self._threads = start_tasks(tasks, lambda *item: put(item), self._end, workers)

    def __iter__(self) -> Iterator[tuple[int, Part | Completion]]:
        while self._left:
            index, item = self._queue.get()
            self._left -= isinstance(item, Completion | OutriderError)
            if isinstance(item, OutriderError):
                raise item
            yield index, item

    def end(self) -> None:
        """End all texts where they are. The iteration goes on to what was made until then."""
        self._end.set()

    def join(self) -> None:
        """Wait until no task runs any more."""
        for thread in self._threads:
            thread.join()


class CompletionStream(Iterator[Piece]):
    """The pieces of one text while it is made.

    Iterate to the end, or leave the context: that ends the text at once. `result` has the whole
    text afterwards. An error that ends the text is raised by the iteration.
    """

    def __init__(self, task: Task[Piece]) -> None:
        self._run = TextRun([task])
        self._ended: Completion | OutriderError | None = None

    def __repr__(self) -> str:
        state = "running" if self._ended is None else repr(self._ended)
        return f"CompletionStream({state})"

    @property
    def result(self) -> Completion:
        """The finished text. Raises InvalidRequest before the iteration has ended."""
        if not isinstance(self._ended, Completion):
            raise InvalidRequest("the text is not finished: iterate over the stream to its end")
        return self._ended

    def end(self) -> None:
        """End the text where it is. The iteration goes on to what was made until then."""
        self._run.end()

    def close(self) -> None:
        """End the text, and wait for its thread. Idempotent."""
        self._run.end()
        self._run.join()

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
