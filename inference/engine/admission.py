"""Admission: the open sessions, the queue for rows of the KV cache, and eviction from rows."""

from __future__ import annotations

from collections import Counter
from functools import partial
from threading import Condition

from inference.backends import Model
from inference.engine.prefix_cache import RowPool
from inference.engine.sessions.session import Callback, Session
from inference.engine.tuning import TUNING
from inference.errors import Busy, Unavailable


class Admission:
    """The open sessions of one model, in order of opening.

    waiting: maximum sessions that queue for a row.
    max_sessions: maximum open sessions, on rows and queued.
    lock: guards this object, its rows and its sessions; it is notified of possible work.
    is_computing: whether a model reads rows now; closed sessions then keep their rows.
    """

    def __init__(self, model: Model, waiting: int) -> None:
        self.pool = RowPool(model)
        self.max_sessions = model.rows + waiting
        self.lock = Condition()
        self.is_computing = False
        self._model, self._waiting = model, waiting
        self._sessions: dict[Session, None] = {}

    @property
    def sessions(self) -> list[Session]:
        """Open sessions, in order of opening."""
        return list(self._sessions)

    @property
    def empty(self) -> bool:
        """Whether no session is open."""
        return not self._sessions

    @property
    def line(self) -> list[Session]:
        """Sessions that queue for a row, in the order in which they get one.

        The tenant with the fewest rows comes first, then the session opened first.
        """
        waiting = [
            session for session in self._sessions if session.row is None and session.wants_row
        ]
        if len(waiting) > 1:
            rows = self._rows_by_tenant()
            waiting.sort(key=lambda session: rows[session.tenant])
        return waiting

    @property
    def on_rows(self) -> list[Session]:
        """Sessions that hold a row, in order of opening."""
        return [session for session in self._sessions if session.row is not None]

    @property
    def closing(self) -> bool:
        """Whether any closed session has not been removed yet."""
        return any(session.closed for session in self._sessions)

    def add(self, session: Session, now: float) -> None:
        """Add an open session. Raises Busy if it would have to wait and the queue is full.

        now: the engine's time in seconds, as in all methods of this class.
        """
        line = len(self.line)
        if line >= self._waiting + self.pool.free + len(self._silent(now)):
            full = f"{self._model.rows} sessions are served and {line} are queued"
            raise Busy(f"the target is full: {full}; try again later")
        self._sessions[session] = None

    def remove_closed(self) -> list[Callback]:
        """Remove closed sessions and free their rows. Return the callbacks to run afterwards."""
        closed = [session for session in self._sessions if session.closed]
        for session in closed:
            del self._sessions[session]
            self._vacate(session)
        return [call for session in closed for call in self.fail(session, session.closed)]

    def close_all(self, reason: str) -> list[Callback]:
        """Close and remove all sessions. Return the callbacks to run afterwards."""
        for session in self._sessions:
            session.closed = session.closed or Unavailable(reason)
        return self.remove_closed()

    def fail(self, session: Session, error: Exception | None) -> list[Callback]:
        """Close a session with an error. Return the callbacks to run afterwards.

        They fail its opening and notify its listeners. The session is removed later.
        """
        session.closed = session.closed or error
        opening, session.opening = session.opening, None
        calls = session.listeners
        if opening is not None:
            calls.insert(0, partial(opening.future.set_exception, error))
        return calls

    def hand_out_rows(self, now: float) -> list[Session]:
        """Give rows to queued sessions. Return the sessions that were evicted for this."""
        evicted = []
        while line := self.line:
            first = line[0]
            shared = () if first.prompt_scores.missing else first.tokens
            row = self.pool.take(shared, first.sharing)
            if row is not None:
                first.assign_row(row, self._model, now)
                continue
            victim = self._victim(first, now)
            if victim is None:
                break
            self._vacate(victim)
            evicted.append(victim)
        in_use = len({session.row for session in self.on_rows})
        assert in_use + self.pool.free == self._model.rows, "a row is lost, or has two sessions"
        return evicted

    def next_change(self, now: float) -> float | None:
        """Return the seconds until a waiting session may get a row; None if no session waits."""
        if not self.line:
            return None
        turns = [max(0.0, session.got_row + TUNING.turn_seconds - now) for session in self.on_rows]
        return min([TUNING.silent_seconds, *(seconds for seconds in turns if seconds > 0)])

    def _victim(self, waiting: Session, now: float) -> Session | None:
        """Return the session to evict in favour of `waiting`: the longest idle one, else the one
        that has held a row longest of the tenant with the most rows, once its turn is over.
        """
        silent = self._silent(now)
        if silent:
            return silent[0]
        rows = self._rows_by_tenant()
        if not rows:
            return None
        owner = max(rows, key=lambda tenant: rows[tenant])
        if rows[owner] <= rows[waiting.tenant]:
            return None
        candidates = [
            session for session in self.on_rows if session.tenant == owner and not session.missing
        ]
        longest = min(candidates, key=lambda session: session.got_row, default=None)
        due = longest is not None and now - longest.got_row >= TUNING.turn_seconds
        return longest if due else None

    def _rows_by_tenant(self) -> Counter[str]:
        return Counter(session.tenant for session in self._sessions if session.row is not None)

    def _vacate(self, session: Session) -> None:
        if session.row is not None:
            self.pool.release(session.row)
            session.release_row()

    def _silent(self, now: float) -> list[Session]:
        """Return the sessions on rows that were idle for silent_seconds, the longest idle first."""
        seconds = {session: session.silent_for(now) for session in self.on_rows}
        silent = [session for session in seconds if seconds[session] > TUNING.silent_seconds]
        return sorted(silent, key=seconds.__getitem__, reverse=True)
