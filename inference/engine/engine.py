"""Many sessions on one target: rows lent, prompts prefilled in chunks, and forwards without end.

Whenever the model is free it makes a forward in which every decoding session takes part with its
root and its best candidates. Sessions are spoken to from any thread; one thread at a time makes the
forwards. One session's fault, or end, touches no other. The engine's lock is the innermost: nobody
takes another lock under it, and callbacks run after it was released.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from inference.backends import Model
from inference.candidates import Nodes
from inference.engine.admission import Roster
from inference.engine.calibration import Calibration
from inference.engine.forward import Ask, Observer, Share, Tell, Took, ask_each, prepare
from inference.engine.graph_rounds import GraphRounds
from inference.engine.host import Host
from inference.engine.scheduler import Turns, Wanting
from inference.engine.session import Opened, Opening, Session
from inference.errors import InvalidRequest, LimitExceeded, Unavailable
from inference.order import Decode, Progress
from inference.sampling import SamplingParams
from inference.times import Shape, TargetTimes
from inference.tree import IntArray

LONGEST_WAIT = 60.0
"""Seconds; a rate that allows the next token in a million years is no number for a lock."""


class Engine:
    """Sessions on the rows of a model.

    max_tree_nodes: of one session in one forward, the root included.
    vocabulary: ids the tokenizer knows.
    waiting: sessions that may stand in line for a row.
    times: seconds of a forward by rows and nodes, as measured before.
    branches: whether a forward may hold trees; else it holds each session's likeliest line.
    host: the draft beside the target.  graphs: the draft within the target's graphs.
    clock: seconds.
    """

    def __init__(
        self,
        model: Model,
        *,
        sequence_length: int,
        max_tree_nodes: int,
        vocabulary: int,
        waiting: int = 64,
        times: Mapping[Shape, float] | None = None,
        branches: bool = True,
        host: Host | None = None,
        graphs: GraphRounds | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model, self.sequence_length = model, sequence_length
        self.max_tree_nodes, self.vocabulary = max_tree_nodes, vocabulary
        self.observer = Observer()
        self._host, self._graphs, self._clock = host, graphs, clock
        self._lock = threading.Condition()  # guards the roster, its rows and its sessions
        self._roster = Roster(model, waiting)
        self._turns = Turns(model, TargetTimes(times), max_tree_nodes, branches=branches)
        self._calibrations: defaultdict[str, Calibration] = defaultdict(Calibration)  # by tenant
        self._in_hand = False  # a forward is being made: rows stay with their sessions until then
        self._running = False
        self._step_began: float | None = None

    # What clients say. Any thread.

    def open(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        tenant: str = "",
        limit: int | None = None,
    ) -> tuple[Session, Future[Opened]]:
        """A session, and the future that is done when its prompt is prefilled.

        limit: tokens it may come to, if fewer than the engine's.  Raises InvalidRequest for a
        prompt that cannot be served, Busy when the line is full.
        """
        limit = min(limit or self.sequence_length, self.sequence_length)
        self.check(prompt, limit)
        with self._lock:
            session = Session(prompt, params, tenant, limit, self._calibrations[tenant])
            session.opening = opening = Opening(self._clock())
            self._roster.add(session, opening.asked)
            self._lock.notify_all()
        return session, opening.future

    def check(self, prompt: Sequence[int], limit: int) -> None:
        """Raise unless a session of at most `limit` tokens could start with this prompt."""
        if not len(prompt):
            raise InvalidRequest("the prompt is empty: at least one token is needed")
        if len(prompt) >= limit:
            raise LimitExceeded(
                f"a prompt of {len(prompt)} tokens leaves no room: the sequence length is {limit}, "
                "prompt and output together"
            )
        self._check_ids(np.asarray(prompt))

    def decode(self, session: Session, order: Decode) -> None:
        """Go on with the session, up to what the order says. It replaces an earlier order."""
        self._change(session, partial(session.ask, order))

    def go(self, session: Session, base: int) -> None:
        """Make one forward for a session that waits, if `base` is the position of its root."""
        self._change(session, partial(session.go, base))

    def acknowledge(self, session: Session, length: int) -> None:
        """The client has the first `length` tokens."""
        self._change(session, partial(session.acknowledge, length))

    def join(self, session: Session) -> int:
        """Begin a stream of proposals; returns its id."""
        with self._lock:
            return session.join()

    def leave(self, session: Session, stream: int) -> None:
        """End a stream of proposals."""
        with self._lock:
            session.leave(stream)

    def append(self, session: Session, stream: int, nodes: Nodes) -> None:
        """Candidates came. What is late is dropped; raises InvalidRequest for unknown tokens."""
        if nodes.proposals:
            self._check_ids(np.array([node.token for node in nodes.proposals]))
        with self._lock:
            if session.closed is None:
                session.append(stream, nodes)

    def listen(self, session: Session, stream: int, wake: Tell) -> None:
        """Call `wake`, from any thread, whenever there is progress or the session has ended, until
        the stream leaves.
        """
        with self._lock:
            session.listen(stream, wake)

    def progress(self, session: Session, cursor: int, stream: int = 0) -> Progress:
        """What lies beyond the first `cursor` tokens. Raises what ended the session."""
        with self._lock:
            if session.closed is not None and cursor >= session.length:
                raise session.closed
            return session.progress(cursor, stream)

    def drain(self, session: Session) -> None:
        """End the text here, with the forward in hand: End.DRAINED."""
        self._change(session, session.drain)

    def detach(self, session: Session) -> None:
        """Nobody is there: the session stops, and its row is the first to be lent to others."""
        with self._lock:
            session.detached = True
            session.stands_by(self._clock())
            self._lock.notify_all()

    def attach(self, session: Session) -> None:
        """Somebody is there again."""
        with self._lock:
            session.detached = False
            self._lock.notify_all()

    def close(self, session: Session) -> None:
        """End the session; its row is free once the forward in hand is done. Idempotent."""
        with self._lock:
            session.closed = session.closed or Unavailable("the session is closed")
            tell = [] if self._in_hand else self._bury()
            self._lock.notify_all()
        for call in tell:
            call()

    # What is there.

    @property
    def free_rows(self) -> int:
        """Rows that no session holds."""
        with self._lock:
            return self._roster.pool.free

    @property
    def cached_tokens(self) -> int:
        """Tokens that rows which no session holds remember."""
        with self._lock:
            return self._roster.pool.cached_tokens

    @property
    def most_sessions(self) -> int:
        """On rows and in line."""
        return self._roster.most

    @property
    def sessions(self) -> list[Session]:
        """Those that are open, in order of opening."""
        with self._lock:
            return self._roster.sessions

    @property
    def calibrations(self) -> dict[str, Calibration]:
        """How far proposers are trusted, by tenant."""
        with self._lock:
            return dict(self._calibrations)

    @property
    def step_seconds(self) -> float:
        """How long the step in hand has taken so far; 0 where none is."""
        began = self._step_began
        return 0.0 if began is None else self._clock() - began

    @property
    def in_line(self) -> int:
        """Sessions that wait for a row."""
        with self._lock:
            return len(self._roster.line)

    # Forwards.

    def run(self, stopped: threading.Event) -> None:
        """Make forwards until `stopped` is set; stop() sets it and wakes this up."""
        self._running = True
        try:
            while not stopped.is_set():
                if not self.step():
                    with self._lock:
                        seconds = self._idle_seconds(self._clock())
                        if seconds is None or seconds > 0:
                            self._lock.wait_for(stopped.is_set, 0) or self._lock.wait(seconds)
        finally:
            self._stop()

    def stop(self, stopped: threading.Event) -> None:
        """End run()."""
        with self._lock:
            stopped.set()
            self._lock.notify_all()

    def finish(self, future: Future[Any]) -> None:
        """Wait until the future is done; makes the forwards here when no thread runs the engine."""
        while not future.done():
            if self._running:
                future.exception()
            elif not self.step():
                with self._lock:
                    self._lock.wait(self._idle_seconds(self._clock()))

    @property
    def running(self) -> bool:
        """A thread makes the forwards."""
        return self._running

    def step(self) -> bool:
        """At most one forward, for those who are ready; False when nobody was."""
        self._step_began = begun = self._clock()
        with self._lock:
            tell = self._bury()
            evicted = self._roster.hand_out_rows(begun)
            tell += [partial(self.observer.evicted, session) for session in evicted]
            opened = [one for one in self._roster.on_rows if one.opening and not one.missing]
            tell += [self._answer_opening(session, begun) for session in opened]
            wanting = self._wanting(begun)
        for call in tell:
            call()
        if self._host is not None:
            ready = wanting.decoding
            self._host.work(ready, self._turns.seconds(max(len(ready), 1), 1), self)
        made = self._make_forward(self._clock())
        self._step_began = None
        return made or bool(tell)

    def _wanting(self, now: float) -> Wanting:
        """Sessions on rows that want a forward now."""
        wanting = [session for session in self._roster.on_rows if session.wants_row]
        ready = [one for one in wanting if not one.missing and one.may_go(now)]
        for session in ready:
            session.stands_by(now)
        graphs = self._graphs
        in_graph = [one for one in ready if graphs is not None and graphs.serves(one)]
        unfed = [one for one in in_graph if graphs is not None and graphs.lacks(one)]
        return Wanting(
            [session for session in wanting if session.missing],
            [session for session in ready if session not in in_graph],
            [session for session in in_graph if session not in unfed],
            unfed,
        )

    def _make_forward(self, begun: float) -> bool:
        with self._lock:
            turn = self._turns.next(self._wanting(begun))
            shares, failed = prepare(turn, self._graphs)
            tell = [call for session, error in failed for call in self._fail(session, error)]
            self._in_hand = bool(shares)
        for call in tell:
            call()
        if shares:
            ask = self._graphs.asked(turn) if self._graphs else self.model.choose
            self._forward(shares, ask, begun)
        return bool(shares or tell)

    def _forward(self, shares: Sequence[Share], ask: Ask, begun: float) -> None:
        started = self._clock()
        results = ask_each(ask, [share.segment for share in shares])
        ended = self._clock()
        padded = self.model.padded(len(shares), max(len(share.tree) for share in shares))
        took = Took(shares, padded, started, ended)
        tell: list[Tell] = []
        with self._lock:
            self._in_hand = False
            if ask == self.model.choose and not any(isinstance(one, Exception) for one in results):
                self._turns.record(padded, ended - begun)
            parts = took.parts(self._turns.seconds)
            owed = self._turns.owed(padded, len(shares), took.seconds)
            for share, result, part in zip(shares, results, parts, strict=True):
                tell += self._settle(share, result, took, part, owed)
        for call in tell:
            call()
        seconds = self._clock() - begun - (ended - started)
        self.observer.forward(took.told(seconds))

    def _settle(
        self, share: Share, result: IntArray | Exception, took: Took, part: float, owed: float
    ) -> list[Tell]:
        """Commit what a forward brought; returns what tells the client and the observer.

        part: seconds that the session is charged.  owed: tokens that it was promised.
        """
        session = share.session
        if isinstance(result, Exception):
            return self._fail(session, result)
        commit = share.settle(result, took, part)
        session.stands_by(took.ended)
        if commit is None:
            return []
        session.bank(len(commit.tokens) - owed)
        return [partial(self.observer.committed, session, commit), *session.listeners]

    def _answer_opening(self, session: Session, now: float) -> Tell:
        opening = session.opening
        assert opening is not None
        queue = max(0.0, now - opening.asked - session.prefill_seconds)
        opened = Opened(session.reused, queue, session.prefill_seconds)
        session.opening = None

        def tell() -> None:
            self.observer.opened(session, opened)
            opening.future.set_result(opened)

        return tell

    def _idle_seconds(self, now: float) -> float | None:
        """Until the next step may find something to do; None: until somebody says something."""
        roster = self._roster
        if roster.closing or (roster.pool.free and roster.line) or any(self._wanting(now)):
            return 0.0
        waits = [one.waits_until(now) for one in roster.on_rows if one.decoding]
        change = roster.next_change(now)
        seconds = [*waits, *([] if change is None else [change])]
        return min([*seconds, LONGEST_WAIT]) if seconds else None

    def _change(self, session: Session, change: Tell) -> None:
        """Something a client says that may let its session go on, or end it."""
        with self._lock:
            if session.closed is not None:
                raise session.closed
            change()
            session.stands_by(self._clock())
            listeners = session.listeners
            self._lock.notify_all()
        for wake in listeners:
            wake()

    def _check_ids(self, ids: np.ndarray[Any, np.dtype[Any]]) -> None:
        outside = ids[(ids < 0) | (ids >= self.vocabulary)]
        if outside.size:
            raise InvalidRequest(
                f"token id {outside[0]} is outside the vocabulary of {self.vocabulary}"
            )

    def _stop(self) -> None:
        """No more forwards will be made, for whatever reason: nobody is left waiting."""
        with self._lock:
            self._running = False
            for session in self._roster.sessions:
                session.closed = session.closed or Unavailable("the target has stopped")
            tell = self._bury()
        for call in tell:
            call()

    def _bury(self) -> list[Tell]:
        """Take closed sessions away; what they waited for fails."""
        return [
            call
            for session in self._roster.remove_closed()
            for call in self._fail(session, session.closed)
        ]

    def _fail(self, session: Session, error: Exception | None) -> list[Tell]:
        """End the session; returns what tells whoever waits for it."""
        session.closed = session.closed or error
        opening, session.opening = session.opening, None
        tell: list[Tell] = []
        if opening is not None:
            tell.append(lambda: opening.future.set_exception(error))
        return [*tell, *session.listeners]
