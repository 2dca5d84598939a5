"""Time that passes only when somebody says so, for several threads that take turns.

One thread runs at a time. A thread that is busy, or waits, lets everything happen first that
happens earlier, so that all events come in the order of the clock, whatever threads they come from.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable
from itertools import count


class Signal:
    """Signal that one thread waits for and others raise."""

    def __init__(self) -> None:
        self.raised = False
        self.waiting: _Turn | None = None


class _Turn:
    """One wait of one thread; it comes once, whatever brings it about."""

    def __init__(self) -> None:
        self.has_come = threading.Event()


class VirtualClock:
    """Seconds since an arbitrary moment; it never goes back."""

    def __init__(self) -> None:
        self._now, self._order = 0.0, count()
        self._events: list[tuple[float, int, Callable[[], None] | _Turn]] = []

    def now(self) -> float:
        return self._now

    def at(self, moment: float, happen: Callable[[], None]) -> None:
        """Something happens then, on whatever thread runs. Raises ValueError for a moment that has
        passed.
        """
        self._add(moment, happen)

    def advance(self, seconds: float) -> None:
        """The calling thread is busy for so long. Raises ValueError for less than nothing."""
        self._wait(_Turn(), self._now + seconds)

    def wait(self, signal: Signal, seconds: float = math.inf) -> bool:
        """Until the signal is raised, which takes it back, or so long; False where it was not."""
        if not signal.raised:
            signal.waiting = turn = _Turn()
            self._wait(turn, self._now + seconds)
            signal.waiting = None
        was_raised, signal.raised = signal.raised, False
        return was_raised

    def notify(self, signal: Signal) -> None:
        """Raise it."""
        signal.raised = True
        if signal.waiting is not None:
            self._add(self._now, signal.waiting)
            signal.waiting = None

    def start(self, work: Callable[[], None]) -> None:
        """A thread takes part from now on. `work` leaves before the clock is left alone."""
        turn = _Turn()

        def run() -> None:
            turn.has_come.wait()
            try:
                work()
            finally:
                self._go_on()

        self._add(self._now, turn)
        threading.Thread(target=run, name="on the virtual clock", daemon=True).start()

    def _add(self, moment: float, event: Callable[[], None] | _Turn) -> None:
        if moment < self._now:
            raise ValueError(f"time does not go back: {moment - self._now} seconds")
        if moment < math.inf:
            heapq.heappush(self._events, (moment, next(self._order), event))

    def _wait(self, turn: _Turn, moment: float) -> None:
        self._add(moment, turn)
        self._go_on()
        turn.has_come.wait()

    def _go_on(self) -> None:
        """Let happen what is next, up to a thread's turn."""
        while self._events:
            moment, _, event = heapq.heappop(self._events)
            if not isinstance(event, _Turn):
                self._now = moment
                event()
            elif not event.has_come.is_set():
                self._now = moment
                event.has_come.set()
                return
        raise RuntimeError("all threads wait, and nothing will happen")
