"""HTTP connections with bounds: of their number, and of the time until a request has come."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from outrider.endpoint.failures import ApiError

HEAD_SECONDS, BODY_SECONDS = 10.0, 60.0
"""Time for a request's head, from the connection or its first byte on, and for its body."""


class BoundedConnection(H11Protocol):
    """A connection of uvicorn's that ends where a request does not come in time.

    most: connections at the same time. Beyond them the one that has waited longest for a request
    makes room; where all are being answered, the new one is refused.
    waiting_since: when it began to wait for what it waits for, by the loop's clock
    """

    def __init__(self, most: int, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._most, self.waiting_since = most, 0.0
        self._awaited: object = None  # the client's state, as h11 names it
        self._clock: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> bool:
        """Whether a request, or the rest of one, is still to come."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        others = [one for one in self.connections if isinstance(one, BoundedConnection)]
        super().connection_made(transport)
        if len(others) >= self._most:
            waiting = [one for one in others if one.waiting]
            if not waiting:
                return self._refuse()
            min(waiting, key=lambda one: one.waiting_since).end()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._clock is not None:
            self._clock.cancel()

    def end(self) -> None:
        """Close the connection at once."""
        self.connections.discard(self)  # connection_lost() comes later
        self.transport.abort()

    def _watch(self) -> None:
        """Start the clock when something else is awaited; stop it when a request has come."""
        state = self.conn.their_state
        if state is self._awaited:
            return
        self._awaited, self.waiting_since = state, self.loop.time()
        if self._clock is not None:
            self._clock.cancel()
        if self.waiting:
            seconds = HEAD_SECONDS if state is h11.IDLE else BODY_SECONDS
            self._clock = self.loop.call_later(seconds, self.end)

    def _refuse(self) -> None:
        body = (
            ApiError(
                503,
                f"all of {self._most} connections are in use (--http_connections): ask again later",
                "server_error",
                code="too_many_connections",
            )
            .response()
            .body
        )
        self.transport.write(
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
            b"Retry-After: 1\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), bytes(body))
        )
        self.transport.close()
