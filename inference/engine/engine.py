"""The engine: many sessions on one target, with prefill in chunks and continuous forwards.

Whenever the model is free it makes a forward. Every decoding session takes part with its root and
its best candidates. Clients may call from any thread; one thread at a time makes the forwards. A
session's fault or end affects no other session.

The device waits from the end of a forward to the beginning of the next. So only what the next
forward depends on is done then. Calibration, events and readers have their turn while it computes.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from inference.backends import Model
from inference.engine.admission import Roster
from inference.engine.colocated_drafter import ColocatedDrafter
from inference.engine.forward import (
    Ask,
    EngineEvent,
    Evicted,
    Prefilled,
    Share,
    Tell,
    Took,
    ask_each,
    ignore,
    prepare,
    read,
)
from inference.engine.frontend import Reception, call_all
from inference.engine.graph_rounds import GraphRounds
from inference.engine.scheduler import Turns, Wanting
from inference.engine.session import Session
from inference.errors import Unavailable
from inference.order import Opened
from inference.times import LatencyModel

LONGEST_WAIT = 60.0
"""Seconds that an idle engine waits at most: a tiny rate would overflow the lock's timeout."""

YOUNG_OBJECTS = 10_000
"""Objects that a process with an engine makes before Python's garbage collector looks at them.
Python's own number is 700. One forward of 64 sessions makes about as many, which are gone with it.
"""


def collect_rarely() -> None:
    """Make the garbage collector of the whole process look at YOUNG_OBJECTS at a time.

    What is looked at in the middle of a forward counts as old from then on, although it is gone
    after the forward. So the collector would search all objects of the process every few dozen
    forwards, and all sessions would wait for that.
    """
    gc.set_threshold(YOUNG_OBJECTS)


class Engine(Reception):
    """Sessions on the rows of a model.

    sequence_length: tokens that a session may have, prompt included.
    max_tree_nodes: nodes of one session in one forward, the root included.
    vocabulary: ids that the tokenizer knows; valid ids are below it.
    waiting: sessions that may wait in line for a row.
    times: what forwards take, as far as it is known.
    branches: whether a forward may hold trees; else it holds each session's likeliest chain.
    host: the draft beside the target.
    graphs: the draft within the target's graphs.
    clock: returns seconds.
    """

    def __init__(
        self,
        model: Model,
        *,
        sequence_length: int,
        max_tree_nodes: int,
        vocabulary: int,
        waiting: int = 64,
        times: LatencyModel | None = None,
        branches: bool = True,
        host: ColocatedDrafter | None = None,
        graphs: GraphRounds | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(Roster(model, waiting), sequence_length, vocabulary, clock)
        self.model, self.max_tree_nodes = model, max_tree_nodes
        self.on_event: Callable[[EngineEvent], None] = ignore  # one at a time, in order
        # makes a short call of the model while nobody has a session; whether it made one
        self.when_idle: Callable[[], bool] = lambda: False
        self._host, self._graphs = host, graphs
        self._turns = Turns(model, times or LatencyModel(), max_tree_nodes, branches=branches)
        self._running = False
        self._step_began: float | None = None
        self._left: list[Tell] = []  # calls that the last forward has left for the next
        self._aside: ThreadPoolExecutor | None = None  # makes them while the next one computes

    @property
    def times(self) -> LatencyModel:
        """What forwards take."""
        return self._turns.times

    def take_times(self, times: LatencyModel) -> None:
        """Expect these seconds of a forward from now on. On the thread of the forwards."""
        self._turns.times = times

    def first_free(self, row: int) -> int:
        """The slot of a row from which on it holds nothing. On the thread of the forwards."""
        return self._roster.pool.first_free(row)

    # Forwards.

    def run(self, stopped: threading.Event) -> None:
        """Make forwards until `stopped` is set; stop() sets it and wakes this thread."""
        self._running = True
        try:
            with ThreadPoolExecutor(1, "aside") as self._aside:
                while not stopped.is_set():
                    if not self._step() and not (self._roster.empty and self.when_idle()):
                        self._wait(stopped)
        finally:
            self._stop()

    def stop(self, stopped: threading.Event) -> None:
        """Make run() return: set `stopped` and wake the thread of the forwards."""
        with self._lock:
            stopped.set()
            self._lock.notify_all()

    def finish(self, future: Future[Any]) -> None:
        """Wait until a future is done. Makes the forwards here when no thread runs the engine."""
        while not future.done():
            if self._running:
                future.exception()
            elif not self.step():
                with self._lock:
                    self._lock.wait(self._idle_seconds(self._clock()))

    @property
    def running(self) -> bool:
        """Whether a thread is in run() and makes the forwards."""
        return self._running

    @property
    def step_seconds(self) -> float:
        """Seconds that the current step has taken so far; 0 between steps."""
        began = self._step_began
        return 0.0 if began is None else self._clock() - began

    def step(self) -> bool:
        """Make at most one forward for the ready sessions; False when there was nothing to do."""
        made = self._step()
        self._tell()
        return made

    def _step(self) -> bool:
        """Make at most one forward, and leave what follows from it for _tell()."""
        self._step_began = begun = self._clock()
        with self._lock:
            tell = self._bury()
            evicted = self._roster.hand_out_rows(begun)
            tell += [partial(self.on_event, Evicted(session)) for session in evicted]
            opened = [one for one in self._roster.on_rows if one.opening and not one.missing]
            tell += [self._answer_opening(session, begun) for session in opened]
            ready = self._wanting(begun).decoding if self._host is not None else ()
        if tell or self._host is not None:
            self._tell(tell)
        if self._host is not None:
            self._host.work(ready, self._turns.seconds(max(len(ready), 1), 1), self)
        made = self._make_forward(self._clock())
        self._step_began = None
        return made or bool(tell)

    def _wanting(self, now: float) -> Wanting:
        """Sessions on rows that want a forward now, by kind of forward."""
        filling, ready = list[Session](), list[Session]()
        for session in self._roster.on_rows:
            if session.missing:
                if session.wants_row:
                    filling.append(session)
            elif session.stands_by(now):
                ready.append(session)
        if self._graphs is None:
            return Wanting(filling, ready, [])
        in_graph = self._graphs.takes(ready, self._turns.seconds)
        trees, rounds, unfed = list[Session](), list[Session](), list[Session]()
        for session in ready:
            if session not in in_graph:
                trees.append(session)
            else:
                (unfed if self._graphs.lacks(session) else rounds).append(session)
        return Wanting(filling, trees, rounds, unfed)

    def _make_forward(self, begun: float) -> bool:
        with self._lock:
            turn = self._turns.next(self._wanting(begun))
            shares, failed = prepare(turn, self._graphs)
            tell = [call for session, error in failed for call in self._fail(session, error)]
            self._in_hand = bool(shares)
        if tell or not shares:
            self._tell(tell)
        if shares:
            ask = self._graphs.asked(turn) if self._graphs else self.model.choose
            self._forward(shares, ask, begun)
        return bool(shares or tell)

    def _forward(self, shares: Sequence[Share], ask: Ask, begun: float) -> None:
        told = self._aside.submit(self._tell) if self._aside and self._left else None
        started = self._clock()
        results = ask_each(ask, [share.segment for share in shares])
        ended = self._clock()
        if told is not None:
            told.result()
        padded = self.model.padded(len(shares), max(share.nodes for share in shares))
        took = Took(shares, padded, started, ended)
        tell: list[Tell] = []
        with self._lock:
            self._in_hand = False
            if ask == self.model.choose and not any(isinstance(one, Exception) for one in results):
                self._turns.record(padded, ended - begun)
            parts = took.parts(self._turns.seconds)
            owed = self._turns.owed(padded, len(shares), ended - begun)
            for share, answer, part in zip(shares, read(shares, results), parts, strict=True):
                tell += self._settle(share, answer, took, part, owed)
            listeners = [wake for share in shares for wake in share.session.streams.listeners]
        around = self._clock() - begun - (ended - started)
        tell.append(lambda: self.on_event(took.told(around)))
        self._left = [*tell, lambda: self._wake(listeners)]

    def _tell(self, calls: Sequence[Tell] = ()) -> None:
        """Make the calls that the last forward has left, and then these."""
        left, self._left = self._left, []
        call_all([*left, *calls])

    def _wait(self, stopped: threading.Event) -> None:
        """Sleep until a step may have work, or until stop()."""
        with self._lock:
            seconds = self._idle_seconds(self._clock())
            if not stopped.is_set() and (seconds is None or seconds > 0):
                self._lock.wait(seconds)

    def _settle(
        self, share: Share, answer: Any, took: Took, part: float, owed: float
    ) -> list[Tell]:
        """Commit one session's result of a forward; returns the deferred callbacks.

        answer: what the model's answer says, or the error that it ended with.
        part: seconds of the forward that the session is charged.
        owed: tokens that root-only forwards would have brought it in the same time.
        """
        session = share.session
        if isinstance(answer, Exception):
            return self._fail(session, answer)
        commit = share.settle(answer, took, part)
        session.stands_by(took.ended)
        if commit is None:
            return []
        session.bank(len(commit.tokens) - owed)
        return [share.learn, partial(self.on_event, commit)]

    def _answer_opening(self, session: Session, now: float) -> Tell:
        opening = session.opening
        assert opening is not None
        queue = max(0.0, now - opening.asked - session.prefill_seconds)
        opened = Opened(session.reused, queue, session.prefill_seconds)
        session.opening = None

        def tell() -> None:
            self.on_event(Prefilled(session, opened))
            opening.future.set_result(opened)

        return tell

    def _idle_seconds(self, now: float) -> float | None:
        """Seconds until a step may have work; None when only a client's call can bring work."""
        roster = self._roster
        if roster.closing or (roster.pool.free and roster.line) or any(self._wanting(now)):
            return 0.0
        waits = [one.waits_until(now) for one in roster.on_rows if one.decoding]
        change = roster.next_change(now)
        seconds = [*waits, *([] if change is None else [change])]
        return min([*seconds, LONGEST_WAIT]) if seconds else None

    def _stop(self) -> None:
        """Close all sessions after the last forward, so that no client is left waiting."""
        with self._lock:
            self._running = False
            for session in self._roster.sessions:
                session.closed = session.closed or Unavailable("the target has stopped")
            tell = self._bury()
        self._tell(tell)
