"""Typed events of a target, for listeners that count, log or show them.

Events of an engine (inference/engine/forward.py) come on the thread of its forward passes, all
others on the event loop. A listener must be quick, and must not raise.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, TypeAlias

from grpc_comm.translate import Description
from inference.engine.engine import Engine
from inference.engine.events import EngineEvent
from inference.engine.session import Session


class Ending(Enum):
    """The reason why a session is over."""

    CLOSED = "closed"  # by its client
    REFUSED = "refused"  # its client sent an invalid request
    FAILED = "failed"  # an internal error of the target
    EXPIRED = "expired"  # its client did not return within the lease
    DISPLACED = "displaced"  # abandoned by its client, whose key needs its place for another
    DRAINED = "drained"  # the target ended


class ModelServed(NamedTuple):
    """An engine accepts sessions from now on."""

    engine: Engine
    description: Description


class OfModel(NamedTuple):
    """An event of the engine that serves this model."""

    model: str
    event: EngineEvent


class SessionOpened(NamedTuple):
    """A session's prompt was prefilled."""

    session: Session
    session_id: str  # the client's name for it
    tenant: str  # name of the caller's key


class StreamLost(NamedTuple):
    """A session's stream broke. The session is kept for its lease."""

    session: Session


class SessionResumed(NamedTuple):
    """Another stream continues a session."""

    session: Session


class SessionEnded(NamedTuple):
    session: Session
    reason: Ending


class CallRejected(NamedTuple):
    """A call ended with an error."""

    code: str  # name of the gRPC status code
    tenant: str = ""  # empty for an unknown caller


class MessageReceived(NamedTuple):
    size: int  # bytes


class MessageSent(NamedTuple):
    size: int  # bytes


class Drop(Enum):
    """The reason why candidates were dropped."""

    RATE = "rate"  # above their key's rate; they were not examined
    LATE = "late"  # the target had passed their position, or it was pruned
    CAP = "cap"  # the least valuable of a session that has too many


class CandidatesDropped(NamedTuple):
    """Candidates that will not be computed."""

    candidates: int
    why: Drop


class Draining(NamedTuple):
    """No new sessions are accepted, and clients with open ones are asked to leave."""


Event: TypeAlias = (
    ModelServed
    | OfModel
    | SessionOpened
    | StreamLost
    | SessionResumed
    | SessionEnded
    | CallRejected
    | MessageReceived
    | MessageSent
    | CandidatesDropped
    | Draining
)
Listener: TypeAlias = Callable[[Event], None]


class Listeners(list[Listener]):
    """A listener that passes each event on, in order."""

    def __call__(self, event: Event) -> None:
        for listener in self:
            listener(event)


def ignore(event: Event) -> None:
    """A listener that does nothing."""
