"""What clients say to their sessions, from any thread, and what they are told.

The lock is the innermost: nobody takes another lock under it, and callbacks run after it was
released.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from inference.candidates import Dropped, Nodes
from inference.engine.admission import Roster
from inference.engine.calibration import Calibration
from inference.engine.forward import Tell
from inference.engine.session import Opening, Session
from inference.errors import InvalidRequest, LimitExceeded, Unavailable
from inference.order import Decode, Opened, Progress
from inference.sampling import SamplingParams


class Reception:
    """Sessions that are open, those in line for a row among them.

    sequence_length: tokens a session may come to.  vocabulary: ids the tokenizer knows.
    clock: seconds.
    """

    def __init__(
        self, roster: Roster, sequence_length: int, vocabulary: int, clock: Callable[[], float]
    ) -> None:
        self.sequence_length, self.vocabulary = sequence_length, vocabulary
        self._roster, self._clock = roster, clock
        self._lock = threading.Condition()  # guards the roster, its rows and its sessions
        self._calibrations: defaultdict[str, Calibration] = defaultdict(Calibration)  # by tenant
        self._in_hand = False  # a forward is being made: rows stay with their sessions until then

    def open(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        tenant: str = "",
        sharing: str | None = None,
        limit: int | None = None,
    ) -> tuple[Session, Future[Opened]]:
        """A session, and the future that is done when its prompt is prefilled.

        tenant: whose it is, for fairness and for how far its proposers are trusted.
        sharing: name of those who start from each other's rows; the tenant's own, if None.
        limit: tokens it may come to, if fewer than the engine's.  Raises InvalidRequest for a
        prompt that cannot be served, Busy when the line is full.
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
        """Raise unless a session of at most `limit` tokens could start with this prompt."""
        if not len(prompt):
            raise InvalidRequest("the prompt is empty: at least one token is needed")
        if len(prompt) >= limit:
            raise LimitExceeded(
                f"a prompt of {len(prompt)} tokens leaves no room: the sequence length is {limit}, "
                "prompt and output together"
            )
        self._check_ids(prompt)

    def decode(self, session: Session, order: Decode) -> None:
        """Go on with the session, up to what the order says. It replaces an earlier order."""
        self._change(session, partial(session.ask, order))

    def go(self, session: Session, base: int) -> None:
        """Make one forward for a session that waits, if `base` is the position of its root."""
        self._change(session, partial(session.go, base))

    def acknowledge(self, session: Session, length: int) -> None:
        """The client has the first `length` tokens."""
        self._change(session, partial(session.acknowledge, length))

    def join(self, session: Session) -> int:
        """Begin a stream of proposals; returns its id."""
        with self._lock:
            return session.streams.join()

    def leave(self, session: Session, stream: int) -> None:
        """End a stream of proposals."""
        with self._lock:
            session.streams.leave(stream)

    def append(self, session: Session, stream: int, nodes: Nodes) -> Dropped:
        """Candidates came; returns what was of no use. Raises InvalidRequest for unknown tokens."""
        self._check_ids([node.token for node in nodes.proposals])
        with self._lock:
            if session.closed is not None:
                return Dropped(late=len(nodes.proposals))
            return session.append(stream, nodes)

    def listen(self, session: Session, stream: int, wake: Tell) -> None:
        """Call `wake`, from any thread, whenever there is progress or the session has ended, until
        the stream leaves.
        """
        with self._lock:
            session.streams.listen(stream, wake)

    def progress(self, session: Session, cursor: int, stream: int = 0) -> Progress:
        """What lies beyond the first `cursor` tokens. Raises what ended the session."""
        with self._lock:
            if session.closed is not None and cursor >= session.length:
                raise session.closed
            return session.progress(cursor, stream)

    def drain(self, session: Session) -> None:
        """End the text here, with the forward in hand: End.DRAINED."""
        self._change(session, session.drain)

    def detach(self, session: Session) -> None:
        """Nobody is there: the session stops, and its row is the first to be lent to others."""
        with self._lock:
            session.detached = True
            session.stands_by(self._clock())
            self._lock.notify_all()

    def attach(self, session: Session) -> None:
        """Somebody is there again."""
        with self._lock:
            session.detached = False
            self._lock.notify_all()

    def close(self, session: Session) -> None:
        """End the session; its row is free once the forward in hand is done. Idempotent."""
        with self._lock:
            session.closed = session.closed or Unavailable("the session is closed")
            tell = [] if self._in_hand else self._bury()
            self._lock.notify_all()
        for call in tell:
            call()

    # What is there.

    @property
    def free_rows(self) -> int:
        """Rows that no session holds."""
        with self._lock:
            return self._roster.pool.free

    @property
    def cached_tokens(self) -> int:
        """Tokens that rows which no session holds remember."""
        with self._lock:
            return self._roster.pool.cached_tokens

    @property
    def most_sessions(self) -> int:
        """On rows and in line."""
        return self._roster.most

    @property
    def sessions(self) -> list[Session]:
        """Those that are open, in order of opening."""
        with self._lock:
            return self._roster.sessions

    @property
    def calibrations(self) -> dict[str, Calibration]:
        """How far proposers are trusted, by tenant."""
        with self._lock:
            return dict(self._calibrations)

    @property
    def in_line(self) -> int:
        """Sessions that wait for a row."""
        with self._lock:
            return len(self._roster.line)

    def _change(self, session: Session, change: Tell) -> None:
        """Something a client says that may let its session go on, or end it."""
        with self._lock:
            if session.closed is not None:
                raise session.closed
            change()
            session.stands_by(self._clock())
            listeners = session.streams.listeners
            self._lock.notify_all()
        for wake in listeners:
            wake()

    def _check_ids(self, ids: Sequence[int]) -> None:
        if len(ids) and not 0 <= min(ids) <= max(ids) < self.vocabulary:
            outside = next(token for token in ids if not 0 <= token < self.vocabulary)
            raise InvalidRequest(
                f"token id {outside} is outside the vocabulary of {self.vocabulary}"
            )

    def _bury(self) -> list[Tell]:
        """Take closed sessions away; what they waited for fails."""
        return [
            call
            for session in self._roster.remove_closed()
            for call in self._fail(session, session.closed)
        ]

    def _fail(self, session: Session, error: Exception | None) -> list[Tell]:
        """End the session; returns what tells whoever waits for it."""
        session.closed = session.closed or error
        opening, session.opening = session.opening, None
        tell: list[Tell] = []
        if opening is not None:
            tell.append(lambda: opening.future.set_exception(error))
        return [*tell, *session.streams.listeners]
