"""What a target's callers do and suffer, told to whoever counts, logs or shows it.

Forwards are told by the engine (inference.engine.forward.Observer); this adds what only the wire knows.
The calls here come on the event loop. An observer must be quick, and must not raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from grpc_comm.translate import Description
from inference.engine.engine import Engine
from inference.engine.forward import Commit, Forward, Observer
from inference.engine.session import Opened, Session


class Ending(Enum):
    """Why a session is over."""

    CLOSED = "closed"  # by its client
    REFUSED = "refused"  # its client asked for what cannot be done
    FAILED = "failed"  # a fault of the target
    EXPIRED = "expired"  # nobody came back within the lease
    DISPLACED = "displaced"  # left by its client, whose key needs its place for another
    DRAINED = "drained"  # the target ended


class ServiceObserver:
    """Hears what happens at a target. This one does nothing."""

    def engine(self, engine: Engine, description: Description) -> Observer:
        """A model is served from now on; returns who hears its engine."""
        return Observer()

    def session_opened(self, session: Session, session_id: str, tenant: str) -> None:
        """Its prompt is prefilled; session_id: as the client calls it; tenant: name of the
        caller's key.
        """

    def session_lost(self, session: Session) -> None:
        """Its stream broke; it is held for its lease."""

    def resumed(self, session: Session) -> None:
        """Another stream goes on with it."""

    def session_ended(self, session: Session, reason: Ending) -> None: ...

    def rejected(self, code: str, tenant: str = "") -> None:
        """A call ended with this gRPC status code (its name); tenant: "" when the caller is not
        known.
        """

    def bytes_up(self, count: int) -> None:
        """A message of so many bytes came."""

    def bytes_down(self, count: int) -> None:
        """A message of so many bytes was sent."""

    def dropped(self, candidates: int) -> None:
        """So many came faster than their key may send them, and were not looked at."""

    def draining(self) -> None:
        """No new sessions are taken; those that are here are asked to leave."""


class ServiceObservers(ServiceObserver):
    """Several of them, each told of everything, in their order."""

    def __init__(self, observers: Sequence[ServiceObserver]) -> None:
        self._observers = tuple(observers)

    def engine(self, engine: Engine, description: Description) -> Observer:
        return _EngineObservers(
            [observer.engine(engine, description) for observer in self._observers]
        )

    def session_opened(self, session: Session, session_id: str, tenant: str) -> None:
        for observer in self._observers:
            observer.session_opened(session, session_id, tenant)

    def session_lost(self, session: Session) -> None:
        for observer in self._observers:
            observer.session_lost(session)

    def resumed(self, session: Session) -> None:
        for observer in self._observers:
            observer.resumed(session)

    def session_ended(self, session: Session, reason: Ending) -> None:
        for observer in self._observers:
            observer.session_ended(session, reason)

    def rejected(self, code: str, tenant: str = "") -> None:
        for observer in self._observers:
            observer.rejected(code, tenant)

    def bytes_up(self, count: int) -> None:
        for observer in self._observers:
            observer.bytes_up(count)

    def bytes_down(self, count: int) -> None:
        for observer in self._observers:
            observer.bytes_down(count)

    def dropped(self, candidates: int) -> None:
        for observer in self._observers:
            observer.dropped(candidates)

    def draining(self) -> None:
        for observer in self._observers:
            observer.draining()


class _EngineObservers(Observer):
    """The same for what an engine tells."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def forward(self, done: Forward) -> None:
        for observer in self._observers:
            observer.forward(done)

    def opened(self, session: Session, opened: Opened) -> None:
        for observer in self._observers:
            observer.opened(session, opened)

    def committed(self, session: Session, commit: Commit) -> None:
        for observer in self._observers:
            observer.committed(session, commit)

    def evicted(self, session: Session) -> None:
        for observer in self._observers:
            observer.evicted(session)
