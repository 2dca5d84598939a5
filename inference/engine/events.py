"""Events of an engine, and their listeners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from inference.engine.session import Session
from inference.order import Opened

Callback: TypeAlias = Callable[[], None]
"""A deferred call, made after the engine's lock was released."""


class Forward(NamedTuple):
    """Event: one call of the model."""

    prefill: bool  # a prompt's chunk, for the target or for the draft in its graphs
    rows: int
    nodes: int  # nodes of all rows, without padding
    padded_rows: int
    padded_nodes: int  # nodes of each row, with padding
    model_seconds: float  # time of the call
    engine_seconds: float  # time of the engine's own work around the call: the device waits


class Prefilled(NamedTuple):
    """Event: the prompt is cached; the Opened reply has not been sent."""

    session: Session
    opened: Opened


class Commit(NamedTuple):
    """Event: a forward pass committed tokens of a session."""

    session: Session
    tokens: tuple[int, ...]
    candidates: int  # nodes below the root that were computed
    accepted: int  # candidates that the target accepted
    queue_seconds: float  # time that the session waited for the forward pass
    model_seconds: float  # time of the forward pass
    credit: int  # tokens that the session may still be ahead of its client


class Evicted(NamedTuple):
    """Event: a session lost its row to another session."""

    session: Session


EngineEvent: TypeAlias = Forward | Prefilled | Commit | Evicted
EventListener: TypeAlias = Callable[[EngineEvent], None]


def call_all(calls: Sequence[Callback]) -> None:
    """Run each of the calls, on this thread."""
    for call in calls:
        call()
