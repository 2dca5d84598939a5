"""The way to targets, as sessions use it; and what lets a second device into a session."""

from __future__ import annotations

import threading
from typing import NamedTuple, Protocol

from grpc_comm.client.call import Start
from grpc_comm.translate import Description


class Line(Protocol):
    """The way to `targets` targets that serve the same model; index i is target i modulo
    `targets`.
    """

    @property
    def description(self) -> Description: ...

    @property
    def targets(self) -> int: ...

    def address(self, index: int) -> str: ...

    def start(self, index: int) -> Start:
        """How to begin a stream to it."""
        ...

    def reach(self, index: int, seconds: float, given_up: threading.Event) -> None:
        """Wait until it answers; raises Unavailable after so many seconds, or when the event is
        set.
        """
        ...


class Ticket(NamedTuple):
    """What a second device needs to append to a session, beside its text. A secret; it is void once
    the session was resumed.
    """

    session_id: str
    append_key: bytes
