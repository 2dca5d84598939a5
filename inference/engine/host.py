"""A draft beside the target: a proposer for each session that asks for one.

Its calls hold the target's device, so it works between forwards, on the engine's thread, and one
call serves all of its sessions. A call is made while the tokens that it is expected to bring are
worth more than the seconds that it takes. A session that did not ask for it is never held up by
more than what it is ahead of root-only forwards, and one that asked falls behind them by a
token or so. When the draft fails, sessions go on without it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakSet

from inference.backends import Model, Segment
from inference.candidates import Nodes
from inference.cost.objective import Effort
from inference.drafters.model_proposer import WIDTH, ModelProposer
from inference.drafters.tree_policies import Ranked
from inference.engine.forward import ask_each
from inference.engine.scheduler import LEAST_RATE
from inference.engine.session import MOST_AHEAD, Session
from inference.order import End
from inference.planner.knowledge import Knowledge
from inference.planner.prices import Prices
from inference.proposer import HOST, Notice

log = logging.getLogger(__name__)

MOST_DEBT = -1.0
"""Tokens that a session may be behind root-only forwards for what the draft was asked for it."""

USUAL_NODES = 16
"""Of a forward by which the time of a candidate is told."""


class Board(Protocol):
    """Where candidates are appended: an engine."""

    def join(self, session: Session) -> int: ...

    def leave(self, session: Session, stream: int) -> None: ...

    def append(self, session: Session, stream: int, nodes: Nodes) -> None: ...


@dataclass
class _Guest:
    """A session and what the draft knows of it. end: of its text, as the draft was told.
    heard: its length when it was last looked at.  fed: the draft has its text.
    ahead: tokens, of root-only forwards in the time of its forwards and of the draft's calls.
    """

    session: Session
    proposer: ModelProposer
    stream: int
    row: int
    end: int
    heard: int
    fed: bool = False
    ahead: float = 0.0
    forwards: int = 0
    seconds: float = 0.0
    numbers: int = 0

    def hear(self, now: float, root_only: float) -> None:
        """What the target has committed since. root_only: seconds of a forward of roots alone."""
        session, spent = self.session, self.session.spent
        tokens = session.tokens[self.heard :]
        if not tokens or session.end is not End.NOT:
            return
        forwards, took = max(spent.forwards - self.forwards, 1), spent.model_seconds - self.seconds
        self.bank(len(tokens) - LEAST_RATE * took / root_only)
        notice = Notice(
            now,
            took / forwards,
            session.known(self.stream),
            session.candidates.live,
            session.room,
        )
        self.proposer.hear(self.heard, tokens, now, notice)
        self.heard, self.forwards = session.length, spent.forwards
        self.seconds = spent.model_seconds

    def bank(self, tokens: float) -> None:
        """So many more, or fewer, than root-only forwards had made in the same time."""
        self.ahead = min(self.ahead + tokens, MOST_AHEAD)

    def deliver(self, now: float, board: Board) -> None:
        """Append what the proposer has to send."""
        nodes = self.proposer.flush(now, self._next_number)
        if nodes is not None:
            board.append(self.session, self.stream, nodes)

    def _next_number(self) -> int:
        self.numbers += 1
        return self.numbers - 1


def _wait(sessions: Sequence[Session], seconds: float, root_only: float) -> None:
    """They waited so long, in which forwards without candidates were promised to go on."""
    for session in sessions:
        session.bank(-LEAST_RATE * seconds / root_only)


def _are_ahead(sessions: Sequence[Session]) -> bool:
    """All of root-only forwards."""
    return all(session.banked > 0 for session in sessions)


class Host:
    """Drafts on the rows of a model. Called on the engine's thread only.

    knowledge: of a row, made anew for each; what is learned there stays.  room: nodes that a row
    may have ranked beyond its text.
    """

    def __init__(
        self,
        model: Model,
        knowledge: Callable[[], Knowledge],
        *,
        room: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model, self._room, self._clock = model, room, clock
        self._known = [knowledge() for _ in range(model.rows)]
        self._free = list(range(model.rows))
        self._guests: dict[Session, _Guest] = {}
        self._failed: WeakSet[Session] = WeakSet()
        self._around = 0.0  # seconds in which the last call's answers were taken up

    @property
    def free_rows(self) -> int:
        """Rows that no session has."""
        return len(self._free)

    def work(self, ready: Sequence[Session], root_only: float, board: Board) -> None:
        """Draft for the sessions that ask for it, as long as that is worth their waiting.

        ready: sessions that the next forward will serve.
        root_only: seconds of a forward of these without candidates.
        """
        for guest in list(self._guests.values()):
            if _is_gone(guest):
                self._dismiss(guest, board)
        others = [one for one in ready if not one.drafted_beside]
        if not root_only:
            return  # nothing is known of forwards yet
        for session in ready:
            self._invite(session, root_only, board)
        guests = [self._guests[one] for one in ready if one in self._guests]
        for guest in guests:
            if not guest.fed and _are_ahead(others):
                began = self._clock()
                self._feed(guest, board)
                _wait(others, self._clock() - began, root_only)
            if guest.fed:
                guest.hear(self._clock(), root_only)
                guest.deliver(self._clock(), board)
        while _are_ahead(others):
            began = self._clock()
            calling = [guest for guest in guests if self._wants_call(guest, began)]
            if not calling:
                return
            self._call(calling, began, board)
            seconds = self._clock() - began
            _wait(others, seconds, root_only)
            for guest in calling:
                guest.bank(-LEAST_RATE * seconds / root_only)

    def _wants_call(self, guest: _Guest, now: float) -> bool:
        """It has something to ask, and is not behind already for what it asked before."""
        here = guest.fed and guest.session in self._guests
        return here and guest.ahead > MOST_DEBT and bool(guest.proposer.choose(now))

    def _invite(self, session: Session, root_only: float, board: Board) -> None:
        """Give the session a row, if it asks for the draft and there is one."""
        order = session.order
        if order is None or not order.beside or order.end <= session.length + 1:
            return
        if session in self._guests or session in self._failed or not self._free:
            return
        row = self._free.pop()
        proposer = ModelProposer(
            self._model,
            row,
            self._known[row],
            Prices(
                holds_target=True,
                node_seconds=_node_seconds(self._known[row]),
                effort=Effort(root_only),
                tokens=1.0,
            ),
            room=self._room,
            clock=self._clock,
            kind=HOST,
        )
        proposer.begin(list(session.tokens), session.params, order.end)
        stream = board.join(session)
        self._guests[session] = _Guest(session, proposer, stream, row, order.end, session.length)

    def _feed(self, guest: _Guest, board: Board) -> None:
        """Let the draft see a part of the guest's text; forwards go on meanwhile."""
        try:
            guest.fed = not guest.proposer.feed()
        # A fault of the draft costs speed and no text.
        except Exception as error:
            self._fail(guest, error, board)

    def _call(self, calling: Sequence[_Guest], began: float, board: Board) -> None:
        """One call of the draft, for all of these. Everything since it `began` to be thought about
        is its price, and what taking up the last one's answers took.
        """
        answers = ask_each(self._rank, [guest.proposer.segment() for guest in calling])
        ended = self._clock()
        seconds = ended - began + self._around
        for guest, answer in zip(calling, answers, strict=True):
            if isinstance(answer, Exception):
                self._fail(guest, answer, board)
            else:
                guest.proposer.take(answer, seconds)
                guest.deliver(self._clock(), board)
        self._around = self._clock() - ended

    def _rank(self, segments: Sequence[Segment]) -> list[Ranked]:
        return self._model.rank(segments, WIDTH)

    def _fail(self, guest: _Guest, error: Exception, board: Board) -> None:
        log.error("the draft beside the target failed: %s: %s", type(error).__name__, error)
        self._failed.add(guest.session)
        self._dismiss(guest, board)

    def _dismiss(self, guest: _Guest, board: Board) -> None:
        """Its row is for others."""
        del self._guests[guest.session]
        board.leave(guest.session, guest.stream)
        self._free.append(guest.row)


def _is_gone(guest: _Guest) -> bool:
    """Its session ended, lost its row, wants no draft any more, or a longer text."""
    session, order = guest.session, guest.session.order
    if session.closed is not None or session.row is None:
        return True
    return order is None or not order.beside or order.end > guest.end


def _node_seconds(known: Knowledge) -> float:
    """By which a candidate makes a forward of one row longer."""
    narrow, wide = known.target.seconds(1, 1), known.target.seconds(1, USUAL_NODES)
    return max(wide - narrow, 0.0) / (USUAL_NODES - 1)
