"""Statistics of a target: totals by model, what each session did, and what engines hold.

Metrics and log read this one object. It takes every event first, then hands it on.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple
from weakref import WeakKeyDictionary

from grpc_comm.observability.server_events import (
    CallRejected,
    CandidatesDropped,
    Draining,
    Drop,
    Ending,
    Event,
    Listener,
    MessageReceived,
    MessageSent,
    ModelServed,
    OfModel,
    SessionEnded,
    SessionOpened,
    SessionResumed,
    StreamLost,
)
from inference.engine.engine import Engine
from inference.engine.events import Commit, EngineEvent, Evicted, Forward, Prefilled
from inference.engine.session import Session
from inference.order import End

_SHORT = 8  # characters of a session's id that are shown


@dataclass(kw_only=True)
class CommitTotals:
    """Sums over forwards. tokens: made; rejected candidates are none."""

    forwards: int = 0
    tokens: int = 0
    drafts: int = 0  # forwards with candidates
    candidates: int = 0  # that were computed
    accepted: int = 0  # candidates that became tokens

    def add(self, commit: Commit) -> None:
        self.forwards += 1
        self.tokens += len(commit.tokens)
        self.drafts += commit.candidates > 0
        self.candidates += commit.candidates
        self.accepted += commit.accepted


@dataclass(kw_only=True)
class Entry(CommitTotals):
    """One session. Moments are of time.perf_counter(), in seconds."""

    number: int  # in order of appearance, from 1
    session_id: str = ""
    tenant: str = ""
    model: str = ""
    prompt_tokens: int = 0
    reused_tokens: int = 0
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    asked_at: float = 0.0
    opened_at: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    gap: float | None = None  # seconds between its last two forwards
    forward_queue_seconds: float = 0.0  # waited for its last forward

    def prefilled(self, model: str, event: Prefilled) -> None:
        """Record a prefilled prompt: at this moment, the session's tokens are its prompt."""
        opened, now = event.opened, time.perf_counter()
        self.model, self.prompt_tokens = model, event.session.length
        self.reused_tokens = opened.reused
        self.queue_seconds, self.prefill_seconds = opened.queue_seconds, opened.prefill_seconds
        self.asked_at, self.opened_at = now - opened.queue_seconds - opened.prefill_seconds, now

    def committed(self, commit: Commit) -> None:
        """Record the tokens that a forward brought."""
        now = time.perf_counter()
        self.gap = now - self.last_at if self.forwards else None
        self.first_at, self.last_at = self.first_at or now, now
        self.forward_queue_seconds = commit.queue_seconds
        self.add(commit)

    @property
    def name(self) -> str:
        """The first characters of the client's session id, or the entry's number where it was
        not told.
        """
        shown = "".join(sign for sign in self.session_id[:_SHORT] if sign.isalnum() or sign in "-_")
        return shown or f"#{self.number}"

    @property
    def opened(self) -> bool:
        """Whether the session's prompt was prefilled."""
        return self.opened_at > 0

    @property
    def first_seconds(self) -> float | None:
        """Seconds from Open to its first tokens; None once it had more forwards."""
        return self.first_at - self.asked_at if self.gap is None else None

    @property
    def seconds(self) -> float:
        """Seconds from Open to its last tokens; 0 before the first."""
        return self.last_at - self.asked_at if self.forwards else 0.0

    @property
    def seconds_per_token(self) -> float | None:
        """Seconds of each token after the first; None before the second."""
        return (self.last_at - self.first_at) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens of a forward with candidates; None before the first."""
        return 1 + self.accepted / self.drafts if self.drafts else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens a second from being open to the last forward; None before the first."""
        return (
            self.tokens / (self.last_at - self.opened_at) if self.last_at > self.opened_at else None
        )


@dataclass
class ForwardTotals:
    """Forwards of one kind since the start."""

    forwards: int = 0
    rows: int = 0
    nodes: int = 0  # without padding
    padded_rows: int = 0
    padded_nodes: int = 0
    seconds: float = 0.0

    def add(self, done: Forward) -> None:
        self.forwards += 1
        self.rows += done.rows
        self.nodes += done.nodes
        self.padded_rows += done.padded_rows
        self.padded_nodes += done.padded_rows * done.padded_nodes
        self.seconds += done.model_seconds


@dataclass
class ModelTotals(CommitTotals):
    """Sums over the sessions of one model since the start. Its engine tells one event at a time."""

    prefill: ForwardTotals = field(default_factory=ForwardTotals)
    decode: ForwardTotals = field(default_factory=ForwardTotals)
    engine_seconds: float = 0.0  # the engine's own work around forwards
    prompt_tokens: int = 0
    reused_tokens: int = 0  # prompt tokens whose keys were there already
    accepted_by_depth: list[int] = field(default_factory=list)  # [depth below the root, from 0]
    evictions: int = 0
    credit_stalls: int = 0  # times that a session used up the credit of its client

    @property
    def root_only(self) -> int:
        """Forwards of sessions that had no candidates."""
        return self.forwards - self.drafts

    def forward(self, done: Forward) -> None:
        (self.prefill if done.prefill else self.decode).add(done)
        self.engine_seconds += done.engine_seconds

    def committed(self, commit: Commit) -> None:
        self.add(commit)
        self.credit_stalls += commit.credit <= 0 and commit.session.end is End.NOT
        by_depth = self.accepted_by_depth
        by_depth += [0] * (commit.accepted - len(by_depth))
        for depth in range(commit.accepted):
            by_depth[depth] += 1


class Statistics:
    """A Listener that counts, and tells further listeners afterwards.

    A session has an entry for as long as anybody holds the session. Called from any thread; one
    thread at a time writes to one entry.
    """

    def __init__(self, *listeners: Listener) -> None:
        self.listeners = list(listeners)
        self.engines: list[ModelServed] = []
        self.models: dict[str, ModelTotals] = {}
        self.bytes_up = self.bytes_down = 0
        self.dropped: Counter[Drop] = Counter()
        self.streams_lost = self.sessions_resumed = 0
        self.ended: Counter[Ending] = Counter()
        self.rejected: Counter[str] = Counter()  # by gRPC status code
        self.draining = False
        self._lock = threading.Lock()  # guards the entries' map
        self._entries: WeakKeyDictionary[Session, Entry] = WeakKeyDictionary()
        self._numbers = itertools.count(1)

    def __call__(self, event: Event) -> None:
        match event:
            case OfModel(model, of_engine):
                self._of_engine(model, of_engine)
            case MessageReceived(size):
                self.bytes_up += size
            case MessageSent(size):
                self.bytes_down += size
            case CandidatesDropped(candidates, why):
                self.dropped[why] += candidates
            case SessionOpened(session, session_id, tenant):
                entry = self.entry(session)
                entry.session_id, entry.tenant = session_id, tenant
            case StreamLost():
                self.streams_lost += 1
            case SessionResumed():
                self.sessions_resumed += 1
            case SessionEnded(_, reason):
                self.ended[reason] += 1
            case CallRejected(code):
                self.rejected[code] += 1
            case ModelServed(_, description):
                self.models.setdefault(description.model, ModelTotals())
                self.engines.append(event)
            case Draining():
                self.draining = True
        for listener in self.listeners:
            listener(event)

    def entry(self, session: Session) -> Entry:
        """Return what this session did so far."""
        with self._lock:
            if session not in self._entries:
                self._entries[session] = Entry(number=next(self._numbers))
            return self._entries[session]

    @property
    def health(self) -> str:
        """The target's state: loading, then serving, then draining."""
        if self.draining:
            return "draining"
        return "serving" if self.engines else "loading"

    def _of_engine(self, model: str, event: EngineEvent) -> None:
        totals = self.models[model]
        match event:
            case Commit():
                self.entry(event.session).committed(event)
                totals.committed(event)
            case Forward():
                totals.forward(event)
            case Prefilled(session, opened):
                self.entry(session).prefilled(model, event)
                totals.prompt_tokens += session.length
                totals.reused_tokens += opened.reused
            case Evicted():
                totals.evictions += 1


class State(Enum):
    """Activity of a session."""

    IN_LINE = "in_line"  # waits for a row
    PREFILL = "prefill"
    DECODE = "decode"
    CREDIT = "credit"  # stands still until its client has acknowledged more
    WAITING = "waiting"  # for its client: no order, no Go, or the text has ended
    PARKED = "parked"  # for its client, and its row was lent to another session
    AWAY = "away"  # its stream broke


def state_of(session: Session) -> State:
    """Return what the session is doing at this moment, without taking a lock."""
    if session.wants_row:
        if session.row is None:
            return State.IN_LINE
        return State.PREFILL if session.opening is not None else State.DECODE
    if session.detached:
        return State.AWAY
    if session.row is None:
        return State.PARKED
    stands = session.order is not None and session.end is End.NOT and session.allowed == 0
    return State.CREDIT if stands else State.WAITING


class Occupancy(NamedTuple):
    """Use of an engine's rows."""

    rows: int
    rows_held: int
    in_line: int
    slots: int  # KV slots of all rows
    slots_used: int  # keys of sessions that hold a row
    cached_tokens: int  # in rows that no session holds
    states: dict[State, int]  # sessions in each

    @property
    def usage(self) -> float:
        """Share of all slots that sessions use."""
        return self.slots_used / self.slots


def occupancy(engine: Engine) -> Occupancy:
    """Return the engine's occupancy at this moment. Sessions go on meanwhile."""
    sessions: Sequence[Session] = engine.sessions
    sequences = [session.sequence for session in sessions]
    used = sum(sequence.cached for sequence in sequences if sequence is not None)
    states = Counter(state_of(session) for session in sessions)
    rows = engine.model.rows
    return Occupancy(
        rows=rows,
        rows_held=rows - engine.free_rows,
        in_line=engine.in_line,
        slots=rows * engine.model.capacity,
        slots_used=used,
        cached_tokens=engine.cached_tokens,
        states={state: states[state] for state in State},
    )
