"""The engine's interface for clients: it opens, steers, reads and closes sessions, from any thread.

The engine lock is the innermost lock: no other lock is taken while it is held. Callbacks run after
it is released.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from inference.candidates import Dropped
from inference.engine.admission import Roster
from inference.engine.calibration import Calibration
from inference.engine.forward import Tell
from inference.engine.session import Opening, Session
from inference.errors import InvalidRequest, LimitExceeded, Unavailable
from inference.order import Decode, Opened, Progress
from inference.proposer import Nodes
from inference.sampling import SamplingParams


def call_all(calls: Sequence[Tell]) -> None:
    """Make each of the calls, on this thread."""
    for call in calls:
        call()


class Reception:
    """The open sessions of an engine, on rows and in line, and what clients may ask of them.

    Every method may be called from any thread. A method that changes a session raises the error
    that closed it, if it is closed.

    sequence_length: tokens that a session may have, prompt included.
    vocabulary: ids that the tokenizer knows; valid ids are below it.
    clock: returns seconds.
    hand_over: makes the calls of listeners, those of one forward together. Not under the lock.
    """

    def __init__(
        self, roster: Roster, sequence_length: int, vocabulary: int, clock: Callable[[], float]
    ) -> None:
        self.sequence_length, self.vocabulary = sequence_length, vocabulary
        self._roster, self._clock = roster, clock
        self._lock = threading.Condition()  # guards the roster, its rows and its sessions
        self._calibrations: defaultdict[str, Calibration] = defaultdict(Calibration)  # by tenant
        self._in_hand = False  # a forward is running: closed sessions keep their rows
        self.hand_over: Callable[[Sequence[Tell]], object] = (
            call_all  # calls listeners, all at once
        )

    def open(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        tenant: str = "",
        sharing: str | None = None,
        limit: int | None = None,
    ) -> tuple[Session, Future[Opened]]:
        """Open a session; the future is done when its prompt is prefilled.

        Raises InvalidRequest for a prompt that cannot be served, and Busy when the line is full.

        tenant: owner of the session, for fairness and calibration.
        sharing: name of the group that shares cached prefixes; None: the tenant alone.
        limit: tokens that the session may have, if fewer than sequence_length.
        """
        limit = min(limit or self.sequence_length, self.sequence_length)
        self.check(prompt, limit)
        with self._lock:
            calibration = self._calibrations[tenant]
            session = Session(prompt, params, tenant, limit, calibration, sharing)
            session.opening = opening = Opening(self._clock())
            self._roster.add(session, opening.asked)
            self._lock.notify_all()
        return session, opening.future

    def check(self, prompt: Sequence[int], limit: int) -> None:
        """Raise InvalidRequest unless a session of `limit` tokens can start with this prompt."""
        if not len(prompt):
            raise InvalidRequest("the prompt is empty: at least one token is needed")
        if len(prompt) >= limit:
            raise LimitExceeded(
                f"a prompt of {len(prompt)} tokens leaves no room: the sequence length is {limit}, "
                "prompt and output together"
            )
        self._check_ids(prompt)

    def decode(self, session: Session, order: Decode) -> None:
        """Let the target decode as ordered; replaces an earlier order.

        Raises LimitExceeded for an end beyond the session's limit.
        """
        self._change(session, partial(session.ask, order))

    def go(self, session: Session, base: int) -> None:
        """With pace WAIT: ask for one forward, if `base` is the position of the root."""
        self._change(session, partial(session.go, base))

    def acknowledge(self, session: Session, length: int) -> None:
        """Record that the client has the first `length` tokens.

        Raises InvalidRequest for more tokens than the session has.
        """
        self._apply(session, partial(session.acknowledge, length))

    def join(self, session: Session) -> int:
        """Begin a stream of proposals; returns its id."""
        with self._lock:
            return session.streams.join()

    def leave(self, session: Session, stream: int) -> None:
        """End a stream of proposals."""
        with self._lock:
            session.streams.leave(stream)

    def append(self, session: Session, stream: int, nodes: Nodes) -> Dropped:
        """Add candidates; returns how many were dropped. Raises InvalidRequest for unknown ids."""
        self._check_ids([node.token for node in nodes.proposals])
        with self._lock:
            if session.closed is not None:
                return Dropped(late=len(nodes.proposals))
            return session.append(stream, nodes)

    def listen(self, session: Session, stream: int, wake: Tell) -> None:
        """Call `wake` by hand_over() at each progress and at the session's end.

        The calls stop when the stream leaves.
        """
        with self._lock:
            session.streams.listen(stream, wake)

    def progress(self, session: Session, cursor: int, stream: int = 0) -> Progress:
        """The progress beyond the first `cursor` tokens.

        Raises the error that closed the session, once all its tokens were read.
        """
        with self._lock:
            if session.closed is not None and cursor >= session.length:
                raise session.closed
            return session.progress(cursor, stream)

    def drain(self, session: Session) -> None:
        """End the text with End.DRAINED, after the running forward if there is one."""
        self._change(session, session.drain)

    def detach(self, session: Session) -> None:
        """The client is gone: the session stops, and its row is the first to be taken."""
        with self._lock:
            session.detached = True
            session.stands_by(self._clock())
            self._lock.notify_all()

    def attach(self, session: Session) -> None:
        """The client is back: the session may go on."""
        with self._lock:
            session.detached = False
            self._lock.notify_all()

    def close(self, session: Session) -> None:
        """Close the session. Its row is free after the running forward. Idempotent."""
        with self._lock:
            session.closed = session.closed or Unavailable("the session is closed")
            tell = [] if self._in_hand else self._bury()
            self._lock.notify_all()
        call_all(tell)

    # Counts and listings.

    @property
    def free_rows(self) -> int:
        """Rows that no session holds."""
        with self._lock:
            return self._roster.pool.free

    @property
    def cached_tokens(self) -> int:
        """Tokens in the prefix cache, that is, in rows that no session holds."""
        with self._lock:
            return self._roster.pool.cached_tokens

    @property
    def most_sessions(self) -> int:
        """Sessions that may be open, on rows and in line."""
        return self._roster.most

    @property
    def sessions(self) -> list[Session]:
        """Open sessions, in order of opening."""
        with self._lock:
            return self._roster.sessions

    @property
    def calibrations(self) -> dict[str, Calibration]:
        """Calibrations of proposers' claims, by tenant."""
        with self._lock:
            return dict(self._calibrations)

    @property
    def in_line(self) -> int:
        """Sessions that wait for a row."""
        with self._lock:
            return len(self._roster.line)

    def _apply(self, session: Session, change: Tell) -> list[Tell]:
        """Apply a client's change to its session and wake the engine; returns the listeners.

        Raises the error that closed the session.
        """
        with self._lock:
            if session.closed is not None:
                raise session.closed
            change()
            session.stands_by(self._clock())
            self._lock.notify_all()
            return session.streams.listeners

    def _change(self, session: Session, change: Tell) -> None:
        """Apply a client's change that its readers should hear of."""
        self._wake(self._apply(session, change))

    def _wake(self, listeners: Sequence[Tell]) -> None:
        if listeners:
            self.hand_over(listeners)

    def _check_ids(self, ids: Sequence[int]) -> None:
        if len(ids) and not 0 <= min(ids) <= max(ids) < self.vocabulary:
            outside = next(token for token in ids if not 0 <= token < self.vocabulary)
            raise InvalidRequest(
                f"token id {outside} is outside the vocabulary of {self.vocabulary}"
            )

    def _bury(self) -> list[Tell]:
        """Remove closed sessions and fail their openings; returns the deferred callbacks."""
        return [
            call
            for session in self._roster.remove_closed()
            for call in self._fail(session, session.closed)
        ]

    def _fail(self, session: Session, error: Exception | None) -> list[Tell]:
        """Close a session with an error; returns the deferred callbacks."""
        session.closed = session.closed or error
        opening, session.opening = session.opening, None
        tell: list[Tell] = []
        if opening is not None:
            tell.append(lambda: opening.future.set_exception(error))
        return [*tell, partial(self._wake, session.streams.listeners)]
