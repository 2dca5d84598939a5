"""Replacements of Python's threads, locks, queues and event loops while a simulation runs. They
park in the kernel.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any

from tests.simulate.kernel import Fiber, kernel


class Waiters:
    """Threads that wait for one thing."""

    def __init__(self) -> None:
        self._fibers: deque[Fiber] = deque()

    def wait(self, seconds: float | None) -> bool:
        """Wait for wake(); false after so many seconds."""
        world = kernel()
        fiber = world.current
        assert fiber is not None, "only threads wait"
        self._fibers.append(fiber)
        woken = world.park(seconds)
        if not woken and fiber in self._fibers:
            self._fibers.remove(fiber)
        return woken

    def wake(self, most: int | None = None) -> None:
        left = len(self._fibers) if most is None else most
        while self._fibers and left:
            left -= 1
            kernel().wake(self._fibers.popleft())


class Lock:
    """A lock; fair by nothing but the dice."""

    def __init__(self) -> None:
        self._owner: Fiber | None = None
        self._waiters = Waiters()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        world = kernel()
        world.give_way()
        if self._owner is not None:
            until = None if timeout < 0 else world.now + timeout
            while self._owner is not None and not world.over:
                if not blocking or (until is not None and until <= world.now):
                    return False
                self._waiters.wait(None if until is None else until - world.now)
        self._owner = world.current
        return True

    def release(self) -> None:
        self._owner = None
        self._waiters.wake(1)

    def _is_owned(self) -> bool:
        return self._owner is kernel().current

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """A lock that its owner may take again. A Condition releases it however often it was taken."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not (self._is_owned() or super().acquire(blocking, timeout)):
            return False
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            super().release()

    def _release_save(self) -> int:
        depth, self._depth = self._depth, 0
        super().release()
        return depth

    def _acquire_restore(self, depth: int) -> None:
        super().acquire()
        self._depth = depth


def _over_these_locks() -> Any:
    """Python's own classes that stand on locks, made of their source with the ones above."""
    ours = {"_allocate_lock": Lock, "Lock": Lock, "RLock": RLock, "_time": lambda: kernel().now}
    made = {**vars(queue), **vars(threading), **ours}
    for one in (threading.Condition, threading.Semaphore, threading.Event):
        exec(inspect.getsource(one), made)
    made["threading"] = SimpleNamespace(**made)
    exec(inspect.getsource(queue._PySimpleQueue), made)  # type: ignore[attr-defined]
    return SimpleNamespace(**made)


_library = _over_these_locks()
Condition, Event, SimpleQueue = _library.Condition, _library.Event, _library._PySimpleQueue


class Numbered:
    """Something whose place in a set is the same in each run."""

    _number = 0

    def __hash__(self) -> int:
        self._number = self._number or next(kernel().numbers)
        return self._number


class Thread(Numbered):
    """A thread of the process that makes it."""

    def __init__(
        self,
        *,
        target: Callable[..., Any],
        name: str = "thread",
        args: tuple[Any, ...] = (),
        daemon: bool | None = None,
    ) -> None:
        self.name, self.daemon, self.ident = name, daemon, None
        self._work, self._ended = partial(target, *args), Event()

    def start(self) -> None:
        world = kernel()
        assert world.current is not None, "only threads start threads"
        fiber = world.spawn(world.current.process, self.name, self._run)
        fiber.thread, self.ident = self, id(fiber)  # type: ignore[assignment]
        world.give_way()

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        return self.ident is not None and not self._ended.is_set()

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._ended.set()


def current_thread() -> Any:
    fiber = kernel().current
    return fiber.thread if fiber is not None else None


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


def run_on_loop(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on a loop of this thread, as asyncio.run() does."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(main)
