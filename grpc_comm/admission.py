"""Who may use the engine, and when: rows first come, first served, and model steps one at a time on one thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from inference.engine import Engine, TargetSession
from inference.errors import Busy
from inference.sampling import SamplingParams

T = TypeVar("T")


@dataclass(frozen=True)
class Timed(Generic[T]):
    """What a model step returned, how long it waited for others' steps and how long it took."""

    value: T
    queue_seconds: float
    model_seconds: float


class ModelThread:
    """The one thread that calls the engine; steps run in the order in which they were asked for.

    Sessions ask for one step at a time, so their steps interleave.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor  # of one thread

    def submit(self, step: Callable[[], T]) -> asyncio.Future[Timed[T]]:
        """The step's result; a step that is cancelled while it waits never runs."""
        asked = time.perf_counter()

        def timed() -> Timed[T]:
            started = time.perf_counter()
            value = step()
            return Timed(value, started - asked, time.perf_counter() - started)

        return asyncio.get_running_loop().run_in_executor(self._executor, timed)


class Line:
    """`places` may be in use; up to `waiting` more stand in line, in order of arrival."""

    def __init__(self, places: int, waiting: int) -> None:
        self._free = asyncio.Semaphore(places)
        self._places, self._most, self._waiting = places, waiting, 0

    async def enter(self) -> None:
        """Return when a place is free; raises Busy when the line is full."""
        if self._free.locked() and self._waiting >= self._most:
            raise Busy(f"the target is full: {self._places} sessions are served and {self._waiting} wait in line; try again later")
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1

    def leave(self) -> None:
        self._free.release()


class _Held:
    """A row of the engine while a session has it; called on the model thread only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._session: TargetSession | None = None

    def take(self, prompt: Sequence[int], params: SamplingParams) -> TargetSession:
        self._session = self._engine.open(prompt, params)
        return self._session

    def give_back(self) -> None:
        if self._session is not None:
            self._engine.close(self._session)


class Rows:
    """The rows of an engine, lent to sessions."""

    def __init__(self, engine: Engine, model: ModelThread, waiting: int) -> None:
        self._engine, self._model = engine, model
        self._line = Line(engine.free_rows, waiting)

    @asynccontextmanager
    async def lend(self, prompt: Sequence[int], params: SamplingParams) -> AsyncIterator[TargetSession]:
        """A session on a row, not yet prefilled; however the block is left, the row is given back."""
        await self._line.enter()
        held = _Held(self._engine)
        try:
            yield (await self._model.submit(lambda: held.take(prompt, params))).value
        finally:
            # After every step of this session, for the thread takes steps in order; and to its end, even in a cancelled task.
            returned = self._model.submit(held.give_back)
            returned.add_done_callback(lambda _: self._line.leave())
            await asyncio.shield(returned)
