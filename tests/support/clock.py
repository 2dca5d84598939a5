"""A clock for tests that must not depend on how long they take."""

from __future__ import annotations


class Clock:
    """Time in seconds that passes only when it is told to."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class WorkingClock(Clock):
    """Whoever looks at it has worked for so many seconds before."""

    def __init__(self, work: float) -> None:
        super().__init__()
        self._work = work

    def __call__(self) -> float:
        self.now += self._work
        return self.now
