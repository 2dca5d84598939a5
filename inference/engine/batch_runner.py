"""The steps of an engine: each runs a forward pass and finishes the previous one.

The device idles between two forward passes, so the engine does only what the next pass needs then.
Calibration, events and readers run while the next pass computes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from inference.backends import Model
from inference.backends.batch import call_each
from inference.engine.admission import Admission
from inference.engine.colocated.graph_rounds import GraphRounds
from inference.engine.forward import (
    BatchItem,
    ChunkItem,
    Commit,
    Forward,
    MakeItem,
    TreeItem,
    prepare,
    read,
)
from inference.engine.scheduler import TIMED, BatchPlan, ForwardKind, ReadySets, Scheduler
from inference.engine.sessions.session import Callback, Session
from inference.order import Opened

MAX_WAIT = 60.0
"""Maximum seconds that an idle engine waits: a huge wait would overflow the lock's timeout."""

YOUNG_OBJECTS = 10_000
"""New objects after which Python's garbage collector runs in a process with an engine. Python's
default of 700 is about what a forward pass of 64 sessions creates, and frees at its end.
"""


class Prefilled(NamedTuple):
    """Event: a session's prompt is prefilled; the Opened reply has not been sent yet."""

    session: Session
    opened: Opened


class Evicted(NamedTuple):
    """Event: a session lost its row to another session."""

    session: Session


EngineEvent: TypeAlias = Forward | Prefilled | Commit | Evicted
EventListener: TypeAlias = Callable[[EngineEvent], None]


def call_all(calls: Sequence[Callback]) -> None:
    """Run all callbacks on this thread."""
    for call in calls:
        call()


def collect_rarely() -> None:
    """Make the process's garbage collector run only after YOUNG_OBJECTS new objects.

    Objects that it examines during a forward pass count as old afterwards, although they are freed
    at the end of the pass. So it would search all objects of the process every few dozen passes,
    and all sessions would wait for that.
    """
    gc.set_threshold(YOUNG_OBJECTS)


class BatchRunner:
    """Runs forward passes for the sessions on rows. Not thread-safe.

    listeners: called with one event at a time, in order, without the lock.
    graphs: the draft compiled into the target's graphs.
    draft: runs the draft on the target's device for ready sessions, given the seconds of a
        root-only forward pass of these sessions.
    clock: returns seconds.
    """

    def __init__(
        self,
        model: Model,
        admission: Admission,
        scheduler: Scheduler,
        listeners: Sequence[EventListener],
        *,
        graphs: GraphRounds | None,
        draft: Callable[[Sequence[Session], float], None] | None,
        clock: Callable[[], float],
    ) -> None:
        self._model, self._graphs, self._draft = model, graphs, draft
        self._admission, self._scheduler, self._listeners = admission, scheduler, listeners
        self._clock = clock
        self._makers: dict[ForwardKind, MakeItem] = {
            ForwardKind.PREFILL: ChunkItem,
            ForwardKind.TREES: TreeItem,
        }
        if graphs is not None:
            self._makers |= {
                ForwardKind.ROUNDS: graphs.round_item,
                ForwardKind.FEEDS: graphs.feed_item,
            }
        self._step_began: float | None = None

    @property
    def step_seconds(self) -> float:
        """Return the seconds that the current step has taken so far; 0 between steps."""
        began = self._step_began
        return 0.0 if began is None else self._clock() - began

    def step(
        self, last: Sequence[Callback], aside: ThreadPoolExecutor | None = None
    ) -> list[Callback] | None:
        """Receive, schedule and run a forward pass, and meanwhile finish the previous one.

        last: deferred callbacks of the previous forward pass; they run before any others.
        aside: thread that runs `last` while this forward pass computes; None: this thread does.

        Return the deferred callbacks of this forward pass; None if there was nothing to do.
        """
        self._step_began = self._clock()
        received = self._receive(self._step_began)
        if received or self._draft is not None:
            call_all([*last, *received])
            last = []
        if self._draft is not None:
            ready = self._ready_to_draft()
            self._draft(ready, self._scheduler.seconds(max(len(ready), 1), 1))
        begun = self._clock()
        plan, items, failed = self._schedule()
        if failed or not items:
            call_all([*last, *failed])
            last = []
        deferred = self._forward(plan, items, begun, last, aside) if items else []
        self._step_began = None
        return deferred if items or received or failed else None

    def _receive(self, now: float) -> list[Callback]:
        admission = self._admission
        with admission.lock:
            calls = admission.remove_closed()
            evicted = admission.hand_out_rows(now)
            calls += [partial(self._report, Evicted(session)) for session in evicted]
            opened = [
                session for session in admission.on_rows if session.opening and not session.missing
            ]
            return calls + [self._answer_opening(session, now) for session in opened]

    def _ready_to_draft(self) -> Sequence[Session]:
        with self._admission.lock:
            self._admission.is_computing = True
            return self._ready_sets()[ForwardKind.TREES]

    def _schedule(self) -> tuple[BatchPlan, list[BatchItem], list[Callback]]:
        """Prepare the next forward pass: its plan, items, and the callbacks of failed sessions."""
        with self._admission.lock:
            plan = self._scheduler.next(self._ready_sets())
            items, failed = prepare(plan, self._makers[plan.kind])
            calls = [
                call for session, error in failed for call in self._admission.fail(session, error)
            ]
            self._admission.is_computing = bool(items)
        return plan, items, calls

    def _forward(
        self,
        plan: BatchPlan,
        items: Sequence[BatchItem],
        begun: float,
        last: Sequence[Callback],
        aside: ThreadPoolExecutor | None,
    ) -> list[Callback]:
        """Run a forward pass and settle it. Return its deferred callbacks.

        begun: time in seconds at which the engine began to prepare the pass.
        """
        pending = aside.submit(call_all, last) if aside is not None and last else None
        call = self._graphs.call_of(plan.kind) if self._graphs is not None else self._model.choose
        started = self._clock()
        answers = call_each(call, [item.segment for item in items])
        ended = self._clock()
        assert begun <= started <= ended, "the clock went back"
        if pending is not None:
            pending.result()
        padded = self._model.padded(len(items), max(item.nodes for item in items))
        forward = Forward(items, padded, started, ended)
        with self._admission.lock:
            self._admission.is_computing = False
            plan.delayed.count_delay(forward.model_seconds)
            if not any(isinstance(answer, Exception) for answer in answers):
                if plan.kind in TIMED:
                    self._scheduler.record(padded, ended - begun)
                elif self._graphs is not None:
                    self._graphs.record(plan.kind, forward.rows, forward.model_seconds)
            calls = self._settle(forward, answers, ended - begun)
            wakes = [wake for item in items for wake in item.session.listeners]
        around = self._clock() - begun - forward.model_seconds
        event = forward._replace(engine_seconds=around)
        return [*calls, partial(self._report, event), *wakes]

    def _settle(self, forward: Forward, answers: Sequence[Any], seconds: float) -> list[Callback]:
        """Commit each session's result of a forward pass. Return the callbacks to run afterwards.

        answers: [items] the model's answers, or the error that it raised.
        seconds: time of the forward pass, including the engine's own work before it.
        """
        calls: list[Callback] = []
        charges = forward.charges(self._scheduler.seconds)
        promised = self._scheduler.promised(forward.padded, forward.rows, seconds)
        read_answers = read(forward.items, answers)
        for item, answer, charge in zip(forward.items, read_answers, charges, strict=True):
            session = item.session
            error = answer if isinstance(answer, Exception) else session.rule_error
            if error is not None:
                calls += self._admission.fail(session, error)
                continue
            commit = item.settle(answer, forward, charge)
            session.update_queue_clock(forward.ended)
            if commit is not None:
                session.add_service(len(commit.tokens) - promised)
                calls += [
                    partial(session.calibration.observe, commit.tokens, commit.claimed),
                    partial(self._report, commit),
                ]
        return calls

    def _answer_opening(self, session: Session, now: float) -> Callback:
        opening = session.opening
        assert opening is not None
        queue = max(0.0, now - opening.since - session.prefill_seconds)
        logprobs = tuple(session.prompt_scores.logprobs)
        opened = Opened(session.reused, queue, session.prefill_seconds, logprobs)
        session.opening = None
        session.update_queue_clock(now)

        def answer() -> None:
            self._report(Prefilled(session, opened))
            opening.future.set_result(opened)

        return answer

    def _report(self, event: EngineEvent) -> None:
        for listener in self._listeners:
            listener(event)

    def _ready_sets(self) -> ReadySets:
        filling, decoding = list[Session](), list[Session]()
        for session in self._admission.on_rows:
            if session.missing:
                if session.wants_row and session.row is not None:
                    filling.append(session)
            elif session.is_ready:
                decoding.append(session)
        ready: dict[ForwardKind, list[Session]] = {
            ForwardKind.PREFILL: filling,
            ForwardKind.TREES: decoding,
        }
        if self._graphs is not None:
            rounds, feeds = self._graphs.select(decoding, self._scheduler.seconds)
            drafted = {*rounds, *feeds}
            ready |= {
                ForwardKind.TREES: [session for session in decoding if session not in drafted],
                ForwardKind.ROUNDS: rounds,
                ForwardKind.FEEDS: feeds,
            }
        return ready

    def idle_seconds(self) -> float | None:
        """Return the seconds until a step may have work; None if only a client's call can add work.

        The caller must hold the lock.
        """
        admission, now = self._admission, self._clock()
        can_change = admission.closing or (admission.pool.free and admission.line)
        if can_change or any(self._ready_sets().values()):
            return 0.0
        change = admission.next_change(now)
        return None if change is None else min(change, MAX_WAIT)
