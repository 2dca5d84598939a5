"""Counts, times and current activity of each session of a target, for metrics and log."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple
from weakref import WeakKeyDictionary

from grpc_comm.observability.server_events import Event, OfModel, SessionOpened
from inference.engine.engine import Engine
from inference.engine.events import Commit, Prefilled
from inference.engine.session import Session
from inference.order import End, Opened

_ID_CHARACTERS = 8  # of a session's id that are shown
_NOT_OPENED = Opened()


@dataclass(kw_only=True)
class SessionRecord:
    """Names and times of one session. Times are of time.perf_counter(), in seconds.

    It has no reference to its session, which has the tokens and their costs.
    """

    number: int  # in order of appearance, from 1
    session_id: str = ""
    tenant: str = ""
    model: str = ""
    opened: Opened = _NOT_OPENED
    opened_at: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    gap: float | None = None  # seconds between its last two forward passes

    def note_prompt(self, model: str, opened: Opened) -> None:
        """Record that the prompt has just been prefilled."""
        self.model, self.opened = model, opened
        self.opened_at = time.perf_counter() - opened.queue_seconds - opened.prefill_seconds

    def note_tokens(self) -> None:
        """Record that a forward pass has just committed tokens."""
        now = time.perf_counter()
        self.gap = now - self.last_at if self.last_at else None
        self.first_at, self.last_at = self.first_at or now, now

    @property
    def name(self) -> str:
        """The first characters of the client's session id, or the record's number without one."""
        start = self.session_id[:_ID_CHARACTERS]
        return (
            "".join(sign for sign in start if sign.isalnum() or sign in "-_") or f"#{self.number}"
        )

    @property
    def first_seconds(self) -> float | None:
        """Seconds from Open to its first tokens; None after a later forward pass."""
        return self.first_at - self.opened_at if self.gap is None else None

    @property
    def seconds(self) -> float:
        """Seconds from Open to its last tokens; 0 before the first."""
        return self.last_at - self.opened_at if self.last_at else 0.0


class SessionRecords:
    """A Listener that keeps a record of each session for as long as the session is referenced.

    Called from any thread; one thread at a time writes to one record.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the map
        self._records: WeakKeyDictionary[Session, SessionRecord] = WeakKeyDictionary()
        self._numbers = itertools.count(1)

    def of(self, session: Session) -> SessionRecord:
        """Return the record of a session."""
        with self._lock:
            if session not in self._records:
                self._records[session] = SessionRecord(number=next(self._numbers))
            return self._records[session]

    def __call__(self, event: Event) -> None:
        match event:
            case OfModel(_, Commit(session=session)):
                self.of(session).note_tokens()
            case OfModel(model, Prefilled(session, opened)):
                self.of(session).note_prompt(model, opened)
            case SessionOpened(session, session_id, tenant):
                record = self.of(session)
                record.session_id, record.tenant = session_id, tenant


class State(Enum):
    """Activity of a session."""

    IN_LINE = "in_line"  # waits for a row
    PREFILL = "prefill"
    DECODE = "decode"
    CREDIT = "credit"  # paused until its client has acknowledged more
    WAITING = "waiting"  # for its client: no order, no Go, or the text has ended
    PARKED = "parked"  # for its client, and its row was lent to another session
    AWAY = "away"  # its stream broke


def state_of(session: Session) -> State:
    """Return the session's activity at this moment, without taking a lock."""
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
    """Return the engine's occupancy at this moment. Sessions continue meanwhile."""
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
