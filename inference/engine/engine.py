"""The engine: many sessions on one target, with chunked prefill and continuous batching.

Clients call it from any thread. A session's failure or end does not affect other sessions. The
engine's lock is the innermost: its holder takes no other lock. Callbacks run after its release.
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
from inference.backends.sequence import Slots
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

    sequence_length: maximum tokens of a session, prompt included.
    max_tree_nodes: maximum nodes of a session in a forward pass, the root included.
    vocabulary: number of the tokenizer's ids; valid ids are lower.
    waiting: maximum sessions that queue for a row.
    times: estimated durations of forward passes.
    drafter: the draft on the target's device.
    graphs: the draft compiled into the target's graphs.
    grammars: compiles the grammars of requests; None if grammars are not supported.
    when_idle: makes a short call of the model if no session is open; returns whether it did.
    clock: returns seconds.
    listeners: called with one event at a time, in order, without the engine's lock.
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

        Raises InvalidRequest for a prompt that cannot be served, and Busy if the queue is full.

        rule: the rule of prompt and params, if already built; None: open() builds it.
        tenant: owner of the session, for fairness and calibration.
        sharing: name of the group that shares cached prefixes; None: the tenant alone.
        limit: maximum tokens of the session, if below sequence_length.
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
            self._admission.add(session, opening.since)
            self._lock.notify_all()
        return session, opening.future

    def decode(self, session: Session, order: Decode) -> None:
        """Set the session's order, replacing any earlier order.

        Raises LimitExceeded if its end is beyond the session's limit.
        """
        call_all(self._change(session, partial(session.set_order, order)))

    def go(self, session: Session, base: int) -> None:
        """Request a forward pass with pace WAIT. Ignored unless the root is at position `base`."""
        call_all(self._change(session, partial(session.go, base)))

    def acknowledge(self, session: Session, length: int) -> None:
        """Record that the client has the first `length` tokens.

        Raises InvalidRequest if the session has fewer tokens.
        """
        self._change(session, partial(session.acknowledge, length))

    def drain(self, session: Session) -> None:
        """End the output with End.DRAINED, after the running forward pass if any."""
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
        """Add candidates. Return how many were dropped. Raises InvalidRequest for unknown ids."""
        check_ids(nodes.tokens, self.vocabulary)
        with self._lock:
            if session.closed is not None:
                return Dropped(late=len(nodes.tokens))
            return session.candidates.append(stream, nodes, session.calibration.trusted)

    def listen(self, stream: ProposalStream, wake: Callback) -> None:
        """Call `wake` whenever the session progresses or ends, until the stream leaves.

        `wake` may be called on any thread, and must be quick.
        """
        with self._lock:
            stream.wake = wake

    def progress(
        self, session: Session, cursor: int, stream: ProposalStream | None = None
    ) -> Progress:
        """Return the progress after the first `cursor` tokens.

        Raises the error that closed the session, once all its tokens are read.
        """
        with self._lock:
            if session.closed is not None and cursor >= session.length:
                raise session.closed
            return session.progress(cursor, stream)

    def set_limits(self, session: Session, nodes: int | None, length: int | None) -> None:
        """Limit the session's nodes per forward pass, and its tokens; None: the engine's limit."""
        with self._lock:  # a forward pass is planned and prepared within the same limits
            session.tree_nodes = min(nodes or self.max_tree_nodes, self.max_tree_nodes)
            session.limit = min(length or self.sequence_length, self.sequence_length)
            session.update_queue_clock(self._clock())

    def detach(self, session: Session) -> None:
        """Pause a session whose client has disconnected. Its row is the first to be reassigned."""
        with self._lock:
            session.detached = True
            session.update_queue_clock(self._clock())
            self._lock.notify_all()

    def attach(self, session: Session) -> None:
        """Let a session continue whose client is connected again."""
        with self._lock:
            session.detached = False
            session.update_queue_clock(self._clock())
            self._lock.notify_all()

    def close(self, session: Session) -> None:
        """Close the session, and free its row after the running forward pass. Idempotent."""
        with self._lock:
            session.closed = session.closed or Unavailable("the session is closed")
            calls = [] if self._admission.is_computing else self._admission.remove_closed()
            self._lock.notify_all()
        call_all(calls)

    # Forward passes.

    def run(self, stopped: threading.Event) -> None:
        """Run forward passes until `stopped` is set; stop() sets it and wakes this thread.

        Close all sessions at the end, so that no client keeps waiting.
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
        """Make run() return: set `stopped` and wake the thread in run()."""
        with self._lock:
            stopped.set()
            self._lock.notify_all()

    def step(self) -> bool:
        """Run a forward pass for the ready sessions. Return False if there was nothing to do."""
        calls = self._runner.step([])
        call_all(calls or [])
        return calls is not None

    def finish(self, future: Future[Any]) -> None:
        """Wait until a future is done. If no thread is in run(), run forward passes meanwhile."""
        while not future.done():
            if self.running:
                future.exception()
            elif not self.step():
                with self._lock:
                    self._lock.wait(self._runner.idle_seconds())

    def use_idle_time(self) -> bool:
        """Use idle time for one short call of the model. Return False if none is left to make."""
        return bool(self._when_idle and self._when_idle(self))

    @property
    def step_seconds(self) -> float:
        """Seconds that the current step has taken so far; 0 between steps."""
        return self._runner.step_seconds

    @property
    def row_slots(self) -> list[Slots]:
        """Return the slots of each row, read-only. Call it on the thread of the forward passes."""
        return self._admission.pool.slots

    @property
    def free_rows(self) -> int:
        """Rows that no session holds."""
        with self._lock:
            return self._admission.pool.free

    @property
    def cached_tokens(self) -> int:
        """Tokens in the prefix cache, which consists of the rows that no session holds."""
        with self._lock:
            return self._admission.pool.cached_tokens

    @property
    def max_sessions(self) -> int:
        """Maximum open sessions, on rows and queued."""
        return self._admission.max_sessions

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
        """Apply a client's change to its session and wake the loop. Return the listeners.

        Raises the error that closed the session, if any.
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
