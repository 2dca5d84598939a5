"""How sessions reach targets, and the ticket that lets a second device into a session."""

from __future__ import annotations

import threading
from typing import NamedTuple, Protocol

from grpc_comm.client.call import Start
from grpc_comm.translate import Description


class Line(Protocol):
    """The way to `targets` targets that serve one model. Index i means target i modulo
    `targets`.
    """

    @property
    def description(self) -> Description: ...

    @property
    def targets(self) -> int: ...

    def address(self, index: int) -> str: ...

    def start(self, index: int) -> Start:
        """Return the function that starts a stream to this target."""
        ...

    def reach(self, index: int, seconds: float, given_up: threading.Event) -> None:
        """Wait until the target answers.

        Raises Unavailable after so many seconds, or when the event `given_up` is set.
        """
        ...


class Ticket(NamedTuple):
    """What a second device needs to append to a session, besides its text.

    It is a secret, and void once the session was resumed.
    """

    session_id: str
    append_key: bytes
