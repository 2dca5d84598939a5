"""Who is in: open sessions, those that stand in line for a row, and whose row is taken when others need it."""

from __future__ import annotations

import time
from collections import deque

from inference.backends import Model
from inference.errors import Busy
from inference.rows import RowPool
from inference.session import Session

SILENT_SECONDS = 5.0
"""A session that asked for nothing for so long lends its row to one that waits for a row."""


class Roster:
    """Open sessions of one model, in order of opening. `waiting`: how many may stand in line for a row."""

    def __init__(self, model: Model, waiting: int) -> None:
        self.pool = RowPool(model)
        self._model, self._waiting = model, waiting
        self.most = model.rows + waiting
        self._sessions: dict[Session, None] = {}
        self._line: deque[Session] = deque()

    @property
    def sessions(self) -> list[Session]:
        return list(self._sessions)

    @property
    def working(self) -> list[Session]:
        """Those on a row that wait for something."""
        return [
            session
            for session in self._sessions
            if session.row is not None and session.work is not None
        ]

    @property
    def in_line(self) -> int:
        return len(self._line)

    @property
    def closing(self) -> bool:
        """Somebody is to be taken away."""
        return any(session.closed for session in self._sessions)

    @property
    def movable(self) -> bool:
        """The first in line can be given a row."""
        return bool(self._line) and bool(self.pool.free or self._silent())

    def add(self, session: Session) -> None:
        """Raises Busy when it would have to wait and the line is full."""
        if len(self._line) >= self._waiting + self.pool.free + len(self._silent()):
            full = f"{self._model.rows} sessions are served and {len(self._line)} wait in line"
            raise Busy(f"the target is full: {full}; try again later")
        self._sessions[session] = None

    def queue(self, session: Session) -> None:
        """It wants a row."""
        self._line.append(session)

    def remove_closed(self) -> list[Session]:
        """Closed sessions, whose rows are free now."""
        gone = [session for session in self._sessions if session.closed]
        for session in gone:
            del self._sessions[session]
            if session in self._line:
                self._line.remove(session)
            self._vacate(session)
        return gone

    def hand_out_rows(self) -> list[Session]:
        """First come, first served; returns who lost a row for it."""
        evicted = []
        while self._line:
            row = self.pool.take(self._line[0].tokens, self._line[0].tenant)
            if row is not None:
                self._line.popleft().starts_on(row, self._model)
                continue
            silent = self._silent()
            if not silent:
                break
            self._vacate(silent[0])
            evicted.append(silent[0])
        return evicted

    def _vacate(self, session: Session) -> None:
        if session.row is not None:
            self.pool.give_back(session.row)
            session.leaves_row()

    def _silent(self) -> list[Session]:
        """Those on a row that have been silent for long, the longest first."""
        now = time.perf_counter()
        silent = [
            (session.silent_for(now), session)
            for session in self._sessions
            if session.row is not None
        ]
        return [
            session
            for seconds, session in sorted(silent, key=lambda pair: -pair[0])
            if seconds > SILENT_SECONDS
        ]
