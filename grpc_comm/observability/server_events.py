"""Typed events of a target, for whoever counts, logs or shows them.

Events of an engine (inference/engine/forward.py) come on the thread that makes its forwards, all
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
    REFUSED = "refused"  # its client asked for what cannot be done
    FAILED = "failed"  # a fault of the target
    EXPIRED = "expired"  # nobody came back within the lease
    DISPLACED = "displaced"  # left by its client, whose key needs its place for another
    DRAINED = "drained"  # the target ended


class ModelServed(NamedTuple):
    """An engine takes sessions from now on."""

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
    """A session's stream broke. The session is held for its lease."""

    session: Session


class SessionResumed(NamedTuple):
    """Another stream goes on with a session."""

    session: Session


class SessionEnded(NamedTuple):
    session: Session
    reason: Ending


class CallRejected(NamedTuple):
    """A call ended with an error."""

    code: str  # name of the gRPC status code
    tenant: str = ""  # empty where the caller is not known


class MessageReceived(NamedTuple):
    size: int  # bytes


class MessageSent(NamedTuple):
    size: int  # bytes


class Drop(Enum):
    """The reason why candidates were dropped."""

    RATE = "rate"  # they came faster than their key may send them, and were not looked at
    LATE = "late"  # the target had passed their place, or it was pruned
    CAP = "cap"  # the least valuable of a session that has too many


class CandidatesDropped(NamedTuple):
    """So many candidates will not be computed."""

    candidates: int
    why: Drop


class Draining(NamedTuple):
    """No new sessions are taken, and clients with open ones are asked to leave."""


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
