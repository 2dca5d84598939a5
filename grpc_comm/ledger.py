"""What each session did so far, and what engines hold at a moment: what metrics, logs and the
operator's view are made of.
"""

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

from inference.engine.engine import Engine
from inference.engine.forward import Commit
from inference.engine.session import Opened, Session
from inference.order import End

_SHORT = 8  # characters of a session's id that are shown


@dataclass
class Entry:
    """One session. Moments are of time.perf_counter; tokens are those made, rejected ones not
    among them.
    """

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
    tokens: int = 0
    forwards: int = 0
    drafts: int = 0  # forwards with candidates
    candidates: int = 0  # that were computed
    accepted: int = 0  # of these

    @property
    def name(self) -> str:
        """The first characters of the client's id, or the number of a session whose id was not
        told.
        """
        shown = "".join(sign for sign in self.session_id[:_SHORT] if sign.isalnum() or sign in "-_")
        return shown or f"#{self.number}"

    @property
    def opened(self) -> bool:
        """Its prompt was prefilled."""
        return self.opened_at > 0

    @property
    def acceptance_length(self) -> float | None:
        """Tokens of a forward with candidates; None before the first."""
        return 1 + self.accepted / self.drafts if self.drafts else None

    @property
    def tokens_per_second(self) -> float | None:
        """From being open to the last forward; None before the first."""
        return (
            self.tokens / (self.last_at - self.opened_at) if self.last_at > self.opened_at else None
        )


class Ledger:
    """An entry for each session, for as long as anybody holds the session. Called from any
    thread; one writes to one entry.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: WeakKeyDictionary[Session, Entry] = WeakKeyDictionary()
        self._numbers = itertools.count(1)

    def entry(self, session: Session) -> Entry:
        with self._lock:
            if session not in self._entries:
                self._entries[session] = Entry(next(self._numbers))
            return self._entries[session]

    def opened(self, model: str, session: Session, opened: Opened) -> Entry:
        """Its prompt is prefilled: a session's tokens are its prompt at this moment."""
        entry, now = self.entry(session), time.perf_counter()
        entry.model, entry.prompt_tokens, entry.reused_tokens = model, session.length, opened.reused
        entry.queue_seconds, entry.prefill_seconds = opened.queue_seconds, opened.prefill_seconds
        entry.asked_at, entry.opened_at = now - opened.queue_seconds - opened.prefill_seconds, now
        return entry

    def committed(self, session: Session, commit: Commit) -> float | None:
        """Add a forward; returns the seconds since the session's last one, None for its first."""
        entry, now = self.entry(session), time.perf_counter()
        gap = now - entry.last_at if entry.forwards else None
        entry.first_at, entry.last_at = entry.first_at or now, now
        entry.forwards += 1
        entry.tokens += len(commit.tokens)
        entry.drafts += commit.candidates > 0
        entry.candidates += commit.candidates
        entry.accepted += commit.accepted
        return gap


class State(Enum):
    """What a session is doing."""

    IN_LINE = "in_line"  # waits for a row
    PREFILL = "prefill"
    DECODE = "decode"
    CREDIT = "credit"  # stands still until its client has acknowledged more
    WAITING = "waiting"  # its client has the word: no order, no Go, or the text has ended
    PARKED = "parked"  # the same, and its row was lent to another
    AWAY = "away"  # its stream broke


def state_of(session: Session) -> State:
    """At this moment, without a lock."""
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
    """What an engine's rows are used for."""

    rows: int
    rows_held: int
    in_line: int
    slots: int  # of all rows
    slots_used: int  # keys of sessions that hold a row
    states: dict[State, int]  # sessions in each


def occupancy(engine: Engine) -> Occupancy:
    """At this moment; sessions go on meanwhile."""
    sessions: Sequence[Session] = engine.sessions
    sequences = [session.sequence for session in sessions]
    used = sum(sequence.cached for sequence in sequences if sequence is not None)
    states = Counter(state_of(session) for session in sessions)
    rows = engine.model.rows
    counted = {state: states[state] for state in State}
    return Occupancy(
        rows, rows - engine.free_rows, engine.in_line, rows * engine.model.capacity, used, counted
    )
