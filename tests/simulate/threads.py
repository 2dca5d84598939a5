"""What stands in for Python's threads, locks and queues while a simulation runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from queue import Empty
from typing import Any

from tests.simulate.kernel import Fiber, kernel


class Waiters:
    """Threads that wait for one thing."""

    def __init__(self) -> None:
        self._fibers: deque[Fiber] = deque()

    def __len__(self) -> int:
        return len(self._fibers)

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
        for _ in range(len(self._fibers) if most is None else min(most, len(self._fibers))):
            kernel().wake(self._fibers.popleft())


class Lock:
    """A lock; fair by nothing but the dice."""

    def __init__(self) -> None:
        self._owner: Fiber | None = None
        self._waiters = Waiters()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        world = kernel()
        world.give_way()
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

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """A lock that its owner may take again."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        mine = self._owner is not None and self._owner is kernel().current
        if not (mine or super().acquire(blocking, timeout)):
            return False
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            super().release()

    def release_all(self) -> int:
        """Release it however often it was taken; returns how often that was."""
        depth, self._depth = self._depth, 0
        super().release()
        return depth

    def take_again(self, depth: int) -> None:
        super().acquire()
        self._depth = depth


class Condition:
    """A condition with a lock of its own."""

    def __init__(self, lock: Any = None) -> None:
        self._lock = RLock() if lock is None else lock
        self._waiters = Waiters()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def wait(self, timeout: float | None = None) -> bool:
        depth = self._lock.release_all()
        try:
            return self._waiters.wait(timeout)
        finally:
            if not kernel().over:
                self._lock.take_again(depth)

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = None if timeout is None else kernel().now + timeout
        while not (result := predicate()):
            left = None if until is None else until - kernel().now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        self._waiters.wake(n)

    def notify_all(self) -> None:
        self._waiters.wake()

    def __enter__(self) -> bool:
        return bool(self._lock.acquire())

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Event:
    def __init__(self) -> None:
        self._set, self._waiters = False, Waiters()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._waiters.wake()
        kernel().give_way()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._waiters.wait(timeout)
        return self._set


class SimpleQueue:
    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiters = Waiters()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._items.append(item)
        self._waiters.wake(1)
        kernel().give_way()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        until = None if timeout is None else kernel().now + timeout
        while not self._items:
            left = None if until is None else until - kernel().now
            if not block or (left is not None and left <= 0):
                raise Empty
            self._waiters.wait(left)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items


_numbers = count()


class Thread:
    """A thread of the process that makes it. Its place in a set is the same in each run."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name, self.daemon, self.ident = name or "thread", daemon, None
        self._work = lambda: target and target(*args, **(kwargs or {}))
        self._ended, self._number = Event(), next(_numbers)

    def __hash__(self) -> int:
        return self._number

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
