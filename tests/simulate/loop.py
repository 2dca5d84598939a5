"""asyncio on the simulation's clock: an event loop that parks in the kernel."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from tests.simulate.kernel import Fiber, kernel
from tests.simulate.threads import Numbered


class Future(Numbered, asyncio.Future):  # type: ignore[type-arg]
    """A future whose place in a set is the same in each run."""


class Task(Numbered, asyncio.Task):  # type: ignore[type-arg]
    """The same for a task."""


class Loop(asyncio.BaseEventLoop):
    """An event loop without files: timers, calls from threads, and tasks."""

    def __init__(self) -> None:
        super().__init__()
        self._kernel = kernel()
        self._selector: Any = self
        self._clock_resolution = 5e-13  # a timer is due at its time, and never before
        self._fiber: Fiber | None = None
        self._woken = False
        self.set_task_factory(lambda loop, coro, **options: Task(coro, loop=loop, **options))

    def time(self) -> float:
        return self._kernel.now

    def select(self, timeout: float | None) -> list[Any]:
        """Wait as a selector would."""
        if not self._woken and timeout != 0:
            self._fiber = self._kernel.current
            self._kernel.park(timeout)
            self._fiber = None
        self._woken = False
        return []

    def create_future(self) -> Future:
        return Future(loop=self)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._kernel.over:
            error = context.get("exception")
            self._kernel.crashes.append(f"{context['message']}: {error!r}")

    def __del__(self) -> None:
        """Say nothing of a loop whose process was killed."""

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None:
        self._woken = True
        if self._fiber is not None:
            self._kernel.wake(self._fiber)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on a loop of this thread, as asyncio.run() does."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(main)
