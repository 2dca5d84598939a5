"""The engine: many sessions on one target, with chunked prefill and continuous batching.

Clients may call from any thread: they open, steer, read and close sessions. A session's fault or
end affects no other session.

The engine's lock is the innermost: its holder takes no other lock. Callbacks run after its release.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from inference.backends import Model
from inference.backends.slots import Slots
from inference.engine.admission import Admission
from inference.engine.batch_runner import BatchRunner, EventListener, call_all
from inference.engine.calibration import Calibration
from inference.engine.colocated.drafter import ColocatedDrafter
from inference.engine.colocated.graph_rounds import GraphRounds
from inference.engine.scheduler import Scheduler
from inference.engine.sessions.session import Callback, Opening, Session
from inference.engine.sessions.text_rules import Rules, check_ids
from inference.errors import InvalidRequest, LimitExceeded, Unavailable
from inference.order import Decode, Opened, Progress
from inference.proposer import Nodes
from inference.sampling import SamplingParams
from inference.text.grammar import Grammars
from inference.times import Times
from inference.token_rule import TokenRule
from inference.tree.candidates import Dropped, ProposalStream

MAX_QUEUED = 64
"""Maximum sessions that queue for a row."""


class Engine:
    """Sessions on the rows of a model.

    A method that changes a session raises the error that closed it, if it is closed.

    sequence_length: tokens that a session may have, prompt included.
    max_tree_nodes: nodes of one session in one forward pass, the root included.
    vocabulary: number of the tokenizer's ids; valid ids are below it.
    waiting: maximum sessions that queue for a row.
    times: model of the seconds of forward passes.
    drafter: the draft beside the target.
    graphs: the draft within the target's graphs.
    grammars: builds the rules of texts with a grammar; None where grammars are not supported.
    when_idle: makes a short call of the model while there are no sessions; whether it made one.
    clock: returns seconds.
    listeners: get one event at a time, in order, without the engine's lock.
    running: whether a thread is in run().
    """

    def __init__(
        self,
        model: Model,
        *,
        sequence_length: int,
        max_tree_nodes: int,
        vocabulary: int,
        waiting: int = MAX_QUEUED,
        times: Times | None = None,
        drafter: ColocatedDrafter | None = None,
        graphs: GraphRounds | None = None,
        grammars: Grammars | None = None,
        when_idle: Callable[[Engine], bool] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model, self.max_tree_nodes = model, max_tree_nodes
        self.sequence_length, self.vocabulary = sequence_length, vocabulary
        self.listeners: list[EventListener] = []
        self._clock, self._when_idle = clock, when_idle
        self.rules = Rules(model, vocabulary, grammars)
        self._admission = Admission(model, waiting)
        self._lock = self._admission.lock
        self._calibrations: defaultdict[str, Calibration] = defaultdict(Calibration)  # by tenant
        self.running = False
        times = times or Times()
        self._scheduler = Scheduler(model, times, max_tree_nodes)
        self._runner = BatchRunner(
            model,
            self._admission,
            self._scheduler,
            self.listeners,
            graphs=graphs,
            draft=partial(drafter.work, receiver=self) if drafter is not None else None,
            clock=clock,
        )

    # Sessions, for clients.

    def open(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        rule: TokenRule | None = None,
        tenant: str = "",
        sharing: str | None = None,
        limit: int | None = None,
    ) -> tuple[Session, Future[Opened]]:
        """Open a session; the future is done when its prompt is prefilled.

        Raises InvalidRequest for a prompt that cannot be served, and Busy when the queue is full.

        rule: of the same prompt and params, from rule(); None: it is built here.
        tenant: owner of the session, for fairness and calibration.
        sharing: name of the group that shares cached prefixes; None: the tenant alone.
        limit: tokens that the session may have, if fewer than sequence_length.
        """
        limit = min(limit or self.sequence_length, self.sequence_length)
        if not len(prompt):
            raise InvalidRequest("the prompt is empty: at least one token is needed")
        if len(prompt) >= limit:
            raise LimitExceeded(
                f"a prompt of {len(prompt)} tokens leaves no room: the sequence length is {limit}, "
                "prompt and output together"
            )
        check_ids(prompt, self.vocabulary)
        rule = rule or self.rules.make(prompt, params)
        with self._lock:
            calibration = self._calibrations[tenant]
            session = Session(prompt, params, tenant, limit, calibration, sharing, rule)
            session.opening = opening = Opening(self._clock())
            self._admission.add(session, opening.asked)
            self._lock.notify_all()
        return session, opening.future

    def decode(self, session: Session, order: Decode) -> None:
        """Set the session's order, which replaces an earlier one.

        Raises LimitExceeded for an end beyond the session's limit.
        """
        call_all(self._change(session, partial(session.set_order, order)))

    def go(self, session: Session, base: int) -> None:
        """With pace WAIT: request a forward pass, if `base` is the position of the root."""
        call_all(self._change(session, partial(session.go, base)))

    def acknowledge(self, session: Session, length: int) -> None:
        """Record that the client has the first `length` tokens.

        Raises InvalidRequest for more tokens than the session has.
        """
        self._change(session, partial(session.acknowledge, length))

    def drain(self, session: Session) -> None:
        """End the text with End.DRAINED, after the running forward pass if there is one."""
        call_all(self._change(session, session.drain))

    def join(self, session: Session) -> ProposalStream:
        """Begin a stream of proposals."""
        with self._lock:
            return session.candidates.join()

    def leave(self, session: Session, stream: ProposalStream) -> None:
        """End a stream of proposals."""
        with self._lock:
            session.candidates.leave(stream)

    def append(self, session: Session, stream: ProposalStream, nodes: Nodes) -> Dropped:
        """Add candidates; returns how many were dropped. Raises InvalidRequest for unknown ids."""
        check_ids(nodes.tokens, self.vocabulary)
        with self._lock:
            if session.closed is not None:
                return Dropped(late=len(nodes.tokens))
            return session.append(stream, nodes)

    def listen(self, stream: ProposalStream, wake: Callback) -> None:
        """Call `wake` at each progress and at the session's end, until the stream leaves.

        It is called on any thread, and must be quick.
        """
        with self._lock:
            stream.wake = wake

    def progress(
        self, session: Session, cursor: int, stream: ProposalStream | None = None
    ) -> Progress:
        """The progress beyond the first `cursor` tokens.

        Raises the error that closed the session, once all its tokens are read.
        """
        with self._lock:
            if session.closed is not None and cursor >= session.length:
                raise session.closed
            return session.progress(cursor, stream)

    def set_limits(self, session: Session, nodes: int | None, length: int | None) -> None:
        """Limit the session's nodes in a forward pass, and its tokens; None: as the engine does."""
        with self._lock:  # a forward pass is planned and prepared within the same limits
            session.tree_nodes = min(nodes or self.max_tree_nodes, self.max_tree_nodes)
            session.limit = min(length or self.sequence_length, self.sequence_length)
            session.update_queue_clock(self._clock())

    def detach(self, session: Session) -> None:
        """The client has gone: the session stops, and its row is the first to be reassigned."""
        with self._lock:
            session.detached = True
            session.update_queue_clock(self._clock())
            self._lock.notify_all()

    def attach(self, session: Session) -> None:
        """The client is back: the session may continue."""
        with self._lock:
            session.detached = False
            session.update_queue_clock(self._clock())
            self._lock.notify_all()

    def close(self, session: Session) -> None:
        """Close the session. Its row is free after the running forward pass. Idempotent."""
        with self._lock:
            session.closed = session.closed or Unavailable("the session is closed")
            calls = [] if self._admission.is_computing else self._admission.remove_closed()
            self._lock.notify_all()
        call_all(calls)

    # Forward passes.

    def run(self, stopped: threading.Event) -> None:
        """Run forward passes until `stopped` is set; stop() sets it and wakes this thread.

        At the end all sessions are closed, so no client is left waiting.
        """
        self.running = True
        last: list[Callback] | None = None  # deferred calls of the last forward pass
        try:
            with ThreadPoolExecutor(1, "aside") as aside:
                while not stopped.is_set():
                    last = self._runner.step(last or [], aside)
                    if last is None and not (self._admission.empty and self.use_idle_time()):
                        self._wait(stopped)
            call_all(last or [])
        finally:
            with self._lock:
                self.running = False
                calls = self._admission.close_all("the target has stopped")
            call_all(calls)

    def stop(self, stopped: threading.Event) -> None:
        """Make run() return: set `stopped` and wake the thread of the forward passes."""
        with self._lock:
            stopped.set()
            self._lock.notify_all()

    def step(self) -> bool:
        """Run a forward pass for the ready sessions; False when there was nothing to do."""
        left = self._runner.step([])
        call_all(left or [])
        return left is not None

    def finish(self, future: Future[Any]) -> None:
        """Wait until a future is done. Runs forward passes here when no thread runs the engine."""
        while not future.done():
            if self.running:
                future.exception()
            elif not self.step():
                with self._lock:
                    self._lock.wait(self._runner.idle_seconds())

    def use_idle_time(self) -> bool:
        """Make a short call of the model; False when there are no more."""
        return bool(self._when_idle and self._when_idle(self))

    @property
    def step_seconds(self) -> float:
        """Seconds that the current step has taken so far; 0 between steps."""
        return self._runner.step_seconds

    @property
    def row_slots(self) -> list[Slots]:
        """The slots of each row; read-only. On the thread of the forward passes."""
        return self._admission.pool.slots

    @property
    def free_rows(self) -> int:
        """Rows that no session holds."""
        with self._lock:
            return self._admission.pool.free

    @property
    def cached_tokens(self) -> int:
        """Tokens in the prefix cache, that is, in rows that no session holds."""
        with self._lock:
            return self._admission.pool.cached_tokens

    @property
    def most_sessions(self) -> int:
        """Maximum open sessions, on rows and queued."""
        return self._admission.most

    @property
    def sessions(self) -> list[Session]:
        """Open sessions, in order of opening."""
        with self._lock:
            return self._admission.sessions

    @property
    def calibrations(self) -> dict[str, Calibration]:
        """Calibrations of proposers' claims, by tenant."""
        with self._lock:
            return dict(self._calibrations)

    def _change(self, session: Session, change: Callback) -> list[Callback]:
        """Apply a client's change to its session and wake the loop; returns the listeners.

        Raises the error that closed the session.
        """
        with self._lock:
            if session.closed is not None:
                raise session.closed
            change()
            session.update_queue_clock(self._clock())
            self._lock.notify_all()
            return session.listeners

    def _wait(self, stopped: threading.Event) -> None:
        """Sleep until a step may have work, or until `stopped` is set."""
        with self._lock:
            seconds = self._runner.idle_seconds()
            if not stopped.is_set() and (seconds is None or seconds > 0):
                self._lock.wait(seconds)
