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
        self.waiting: threading.Event | None = None


class VirtualClock:
    """Seconds since an arbitrary moment; it never goes back."""

    def __init__(self) -> None:
        self._now, self._order = 0.0, count()
        self._events: list[tuple[float, int, Callable[[], None] | threading.Event]] = []

    def now(self) -> float:
        return self._now

    def at(self, moment: float, happen: Callable[[], None] | threading.Event) -> None:
        """Call something then, on whatever thread runs, or let a thread that waits continue: once,
        whatever brings it about. Raises ValueError for a moment that has passed.
        """
        if moment < self._now:
            raise ValueError(f"time does not go back: {moment - self._now} seconds")
        if moment < math.inf:
            heapq.heappush(self._events, (moment, next(self._order), happen))

    def advance(self, seconds: float) -> None:
        """The calling thread is busy for so long. Raises ValueError for less than nothing."""
        self._wait(threading.Event(), self._now + seconds)

    def wait(self, signal: Signal, seconds: float = math.inf) -> bool:
        """Until the signal is raised, which takes it back, or so long; False where it was not."""
        if not signal.raised:
            signal.waiting = turn = threading.Event()
            self._wait(turn, self._now + seconds)
            signal.waiting = None
        was_raised, signal.raised = signal.raised, False
        return was_raised

    def notify(self, signal: Signal) -> None:
        """Raise it."""
        signal.raised = True
        if signal.waiting is not None:
            self.at(self._now, signal.waiting)
            signal.waiting = None

    def start(self, work: Callable[[], None]) -> None:
        """A thread takes part from now on. `work` leaves before the clock is left alone."""
        turn = threading.Event()

        def run() -> None:
            turn.wait()
            try:
                work()
            finally:
                self._go_on()

        self.at(self._now, turn)
        threading.Thread(target=run, name="on the virtual clock", daemon=True).start()

    def _wait(self, turn: threading.Event, moment: float) -> None:
        self.at(moment, turn)
        self._go_on()
        turn.wait()

    def _go_on(self) -> None:
        """Let happen what is next, up to a thread's turn."""
        while self._events:
            moment, _, event = heapq.heappop(self._events)
            if not isinstance(event, threading.Event):
                self._now = moment
                event()
            elif not event.is_set():
                self._now = moment
                event.set()
                return
        raise RuntimeError("all threads wait, and nothing will happen")
