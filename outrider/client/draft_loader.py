"""Loads the draft of a client on a background thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack
from threading import Lock, Thread
from typing import Generic, TypeVar

from inference.errors import Unavailable
from outrider.processes import BACKGROUND

Rows = TypeVar("Rows")

_LOOK_SECONDS = 0.1


class DraftLoader(Generic[Rows]):
    """The rows of a draft, which are loaded once.

    load: returns a context manager that loads a draft with the given number of rows
    """

    def __init__(self, load: Callable[[int], AbstractContextManager[Rows]]) -> None:
        self._load, self._lock, self._stack = load, Lock(), ExitStack()
        self._rows = Future[Rows]()
        self._begun: float | None = None
        self._closed = False

    def begin(self, rows: int = 1) -> None:
        """Start loading the draft with this number of rows. Idempotent."""
        with self._lock:
            if self._begun is None and not self._closed:
                self._begun = time.perf_counter()
                Thread(target=self._work, args=(rows,), name=BACKGROUND, daemon=True).start()

    @property
    def loading_seconds(self) -> float | None:
        """Seconds since loading began, while it runs; None before it starts and after it ends."""
        if self._begun is None or self._rows.done():
            return None
        return time.perf_counter() - self._begun

    @property
    def loaded(self) -> Rows | None:
        """The rows; None if they are not loaded yet."""
        done = self._rows.done() and self._rows.exception() is None
        return self._rows.result() if done else None

    def check(self) -> None:
        """Raise the load error if loading has already failed."""
        if self._rows.done():
            self._rows.result()

    def wait(self, is_wanted: Callable[[], bool] = lambda: True) -> Rows | None:
        """Wait for the rows; return None once `is_wanted` returns False. Raises a load error."""
        self.begin()
        while not wait((self._rows,), _LOOK_SECONDS).done:
            if not is_wanted():
                return None
        return self._rows.result()

    def close(self) -> None:
        """Release the rows, now or as soon as they are loaded."""
        with self._lock:
            self._closed = True
            if self._begun is None:
                self._rows.set_exception(_closed())
        self._stack.close()

    def _work(self, count: int) -> None:
        stack = ExitStack()
        try:
            rows = stack.enter_context(self._load(count))
        except BaseException as error:  # raised again in the threads that wait
            self._rows.set_exception(error)
            return
        with self._lock:
            if not self._closed:
                self._stack = stack
                self._rows.set_result(rows)
                return
        stack.close()
        self._rows.set_exception(_closed())


def _closed() -> Unavailable:
    return Unavailable("the client was closed before its draft was loaded")
