"""A cooperative kernel: threads as greenlets, one at a time, on a clock that jumps.

A seeded scheduler picks who runs. Time passes only when nobody can run. So one seed is one history.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import random
import sys
from collections.abc import Callable
from itertools import count
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

MOST_TURNS = 200_000
"""Turns without any time passing, after which somebody spins."""

PREEMPTED_SECONDS = 0.03
"""The longest that a thread is held up by its machine where it gives way."""

TICKS = 2**20
"""Steps of the clock in a second. Who waits for what rounding leaves of a time gets there, too."""

EPOCH = 1_700_000_000.0
"""Of the wall clock, when a simulation begins."""


def ticked(seconds: float) -> float:
    """Return the step of the clock at or after a time."""
    return math.ceil(seconds * TICKS) / TICKS


class Stuck(AssertionError):
    """Somebody spins without end, or waits for what never comes."""


class Process:
    """Threads that are stopped, go on and die together.

    frozen: it is stopped, and its threads wait
    dead: it was killed; its threads never run again
    holds: what has to be empty when nobody wants anything of it
    computes_since: when the forward in hand began; infinite without one
    fails_until, full_until: when its disk can be read, and written to, again
    """

    def __init__(self, name: str) -> None:
        self.name, self.frozen, self.dead = name, False, False
        self.held: list[Fiber] = []  # would run, were it not stopped
        self.holds: dict[str, Any] = {}
        self.computes_since = math.inf
        self.fails_until = self.full_until = 0.0


class Fiber:
    """A thread of a process. wait: what it waits for; None while it can run"""

    def __init__(
        self, process: Process, name: str, work: Callable[[], None], hub: greenlet
    ) -> None:
        self.process, self.name = process, name
        self.wait: list[bool] | None = None
        self.thread: Any = None  # what threading.current_thread() is there
        self.loop: Any = None  # the event loop that runs on it
        self.hooks: Any = None  # asyncio's, for generators of that loop
        self.green = greenlet(work, hub)

    def __str__(self) -> str:
        return f"{self.process.name}/{self.name}"


class Kernel:
    """Fibers, timers, and the order of their turns.

    now: seconds
    crashes: what threads and event loops ended with, that nobody looked at
    lines: the story so far, where it is kept
    numbers: for what has to have an order, such as timers
    """

    def __init__(self, seed: int, *, yields: float = 0.0) -> None:
        """yields: chance that a thread gives way where it may"""
        self.now, self.skew, self.chance = 1_000.0, 0.0, random.Random(f"{seed} schedule")
        self.crashes: list[str] = []
        self.lines: list[str] = []
        self.fibers: dict[Fiber, None] = {}
        self.current: Fiber | None = None
        self.over = False
        self._yields, self.numbers = yields, count(1)
        self._ready: list[Fiber] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._hub = getcurrent()

    # For everybody.

    def tell(self, what: str) -> None:
        """Add a line to the story."""
        self.lines.append(f"{self.now - 1_000:10.4f}  {what}")

    def spawn(self, process: Process, name: str, work: Callable[[], None]) -> Fiber:
        """Begin a thread."""

        def live() -> None:
            try:
                work()
            except GreenletExit:
                pass
            except BaseException as error:  # a thread's last word
                self.crashes.append(f"{fiber}: {type(error).__name__}: {error}")
                if isinstance(error, KeyboardInterrupt):
                    raise
            finally:
                self.fibers.pop(fiber, None)

        fiber = Fiber(process, name, live, self._hub)
        self.fibers[fiber] = None
        self._make_ready(fiber)
        return fiber

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Call it at a time, in nobody's turn. It must not wait."""
        heapq.heappush(self._timers, (when, next(self.numbers), call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.at(self.now + seconds, call)

    # For the thread whose turn it is.

    def park(self, seconds: float | None = None) -> bool:
        """Wait to be woken; false after so many seconds."""
        if self.over or self.current is None:
            raise GreenletExit
        fiber = self.current
        fiber.wait = wait = [False]
        if seconds is not None:
            self.after(
                max(seconds, 1 / TICKS) if seconds > 0 else 0.0,
                lambda: self._resume(fiber, wait, woken=False),
            )
        self._hub.switch()
        if self.over:
            raise GreenletExit
        return wait[0]

    def wake(self, fiber: Fiber) -> None:
        """Let a parked thread go on. Does nothing for one that is not parked."""
        if fiber.wait is not None:
            self._resume(fiber, fiber.wait, woken=True)

    def sleep(self, seconds: float) -> None:
        """Wait. Nobody wakes a sleeper: it is parked under a name that is its own."""
        until = self.now + seconds
        while (left := until - self.now) > 1e-12:
            self.park(left)

    def give_way(self) -> None:
        """Let others run here, by the dice, and sometimes for long."""
        if not self._yields or self.over or self.current is None:
            return
        if self.chance.random() >= self._yields:
            return
        held_up = self.chance.random() < 0.1
        self.park(self.chance.random() * PREEMPTED_SECONDS if held_up else 0.0)

    # For who simulates.

    def freeze(self, process: Process, *, frozen: bool) -> None:
        """Stop a process, or let it go on."""
        process.frozen = frozen
        if not frozen:
            held, process.held = process.held, []
            self._ready += held

    def run(self, until: Callable[[], bool], deadline: float) -> None:
        """Give turns until it is so, as each step of the clock asks. Raises Stuck at the
        deadline.
        """
        timers = self._timers
        while not until():
            if timers and not self._ready:
                self.now = max(self.now, ticked(timers[0][0]))
            if self.now > deadline or not (timers or self._ready):
                raise Stuck(f"this never comes: waiting are {self.waiting()}")
            for _ in range(MOST_TURNS):
                while timers and timers[0][0] <= self.now:
                    heapq.heappop(timers)[2]()
                if not self._ready:
                    break
                self._turn()
            else:
                raise Stuck(f"somebody spins: waiting are {self.waiting()}")

    def waiting(self) -> list[str]:
        """Threads of live processes."""
        return [str(fiber) for fiber in self.fibers if not fiber.process.dead]

    def end(self) -> None:
        """End all threads, wherever they are."""
        self.over = True
        for fiber in list(self.fibers):
            for _ in range(20):
                if fiber.green.dead:
                    break
                self._switch(fiber, fiber.green.throw)  # GreenletExit
        self.fibers.clear()
        self._timers.clear()

    def _turn(self) -> None:
        last = len(self._ready) - 1
        at = self.chance.randrange(last + 1) if last else 0
        fiber, self._ready[at] = self._ready[at], self._ready[last]
        self._ready.pop()
        if fiber.process.dead:
            return
        if fiber.process.frozen:
            fiber.process.held.append(fiber)
            return
        self._switch(fiber, fiber.green.switch)

    def _switch(self, fiber: Fiber, go_on: Callable[[], Any]) -> None:
        """Give it the turn, and with it what a thread of its own would have."""
        self.current = fiber
        if fiber.loop is not None:
            asyncio._set_running_loop(fiber.loop)
            sys.set_asyncgen_hooks(*fiber.hooks)
        try:
            go_on()
        finally:
            self.current, fiber.loop = None, asyncio._get_running_loop()
            if fiber.loop is not None:
                fiber.hooks = sys.get_asyncgen_hooks()
                sys.set_asyncgen_hooks(None, None)
                asyncio._set_running_loop(None)

    def _make_ready(self, fiber: Fiber) -> None:
        (fiber.process.held if fiber.process.frozen else self._ready).append(fiber)

    def _resume(self, fiber: Fiber, wait: list[bool], *, woken: bool) -> None:
        if fiber.wait is wait:
            wait[0], fiber.wait = woken, None
            self._make_ready(fiber)


class Running:
    """The simulation that is under way, if any. One at a time has a process of Python."""

    kernel: Kernel | None = None


def kernel() -> Kernel:
    """Return the kernel of the simulation under way."""
    assert Running.kernel is not None, "no simulation is under way"
    return Running.kernel
