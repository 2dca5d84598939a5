"""The HTTP server: uvicorn with limits of connections, of their waiting time, and of open files."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from grpc_comm.transport import Address
from inference.command import say
from inference.errors import InvalidRequest
from outrider.endpoint.interfaces.answering import GRACE_SECONDS
from outrider.endpoint.interfaces.failures import ApiError

ACCEPTED = 16
"""Connections that asyncio accepts in one go. If no file descriptor is free, it still tries all of
them, and sets a timer for each.
"""

QUEUED = 512
"""Maximum connections that the operating system queues."""

SPARE = 64
"""File descriptors reserved for models, logs and the target."""

_ENOUGH = 10_240  # the maximum on macOS
_NOTE_SECONDS = 60.0

HEAD_SECONDS, BODY_SECONDS = 10.0, 60.0
"""Time limits of a request's head (from the connection or its first byte on) and of its body."""


class BoundedConnection(H11Protocol):
    """A uvicorn connection that is closed if a request does not arrive in time.

    maximum: maximum concurrent connections. A further connection replaces the one that has waited
        longest for a request; if all are being answered, it is refused
    waiting_since: when the connection began to wait for a request, by the event loop's clock
    """

    def __init__(self, maximum: int, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._maximum, self.waiting_since = maximum, 0.0
        self._awaited: object = None  # h11's name of the client's state
        self._clock: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> bool:
        """Whether the connection waits for a request, or for the rest of one."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        earlier = set(self.connections)
        super().connection_made(transport)
        if len(earlier) >= self._maximum and not self.make_room(earlier):
            return self._refuse()
        self._watch()

    @staticmethod
    def make_room(connections: Iterable[Any]) -> bool:
        """End the connection that has waited longest for a request. Returns False if none was
        waiting.
        """
        pool = [item for item in connections if isinstance(item, BoundedConnection)]
        waiting = [connection for connection in pool if connection.waiting]
        if waiting:
            min(waiting, key=lambda connection: connection.waiting_since).end()
        return bool(waiting)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._clock is not None:
            self._clock.cancel()

    def end(self) -> None:
        """Close the connection at once."""
        self.connections.discard(self)  # connection_lost() is called later
        self.transport.abort()

    def _watch(self) -> None:
        """Restart the timer when another part is awaited; stop it when the request is complete."""
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
        words = f"all of {self._maximum} connections are in use: try again later"
        body = ApiError(503, words, code="too_many_connections").response().body
        self.transport.write(
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
            b"Retry-After: 1\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), bytes(body))
        )
        self.transport.close()


def bounded(connections: int) -> int:
    """Raise the limit of open files as far as the system allows. Returns `connections`, or fewer if
    that is needed to leave SPARE descriptors.

    Raises InvalidRequest if even ACCEPTED connections are too many.
    """
    if sys.platform == "win32":  # sockets are not files on Windows
        return connections
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        soft = limit
    if soft == resource.RLIM_INFINITY:
        return connections
    room = soft - len(os.listdir("/dev/fd")) - SPARE
    if room < ACCEPTED:
        raise InvalidRequest(
            f"this process may open {soft} files, which leaves no room for connections: "
            f"{soft - room + ACCEPTED} or more are needed (ulimit -n)"
        )
    return min(connections, room)


class OutOfDescriptors:
    """An event loop's error handler. If no descriptor is free for a new connection, it closes the
    connection that has waited longest for a request, and reports this at most once a minute.

    state: uvicorn's state, which lists the connections
    """

    def __init__(self, state: ServerState) -> None:
        self._state, self._next_note = state, 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            return loop.default_exception_handler(context)
        BoundedConnection.make_room(self._state.connections)
        if time.monotonic() >= self._next_note:
            self._next_note = time.monotonic() + _NOTE_SECONDS
            say(f"note: {error.strerror}: new connections wait or replace idle ones (ulimit -n)")


def listening(address: Address) -> socket.socket:
    """Return a socket bound to the address. Raises InvalidRequest if binding fails."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((address.host, address.port))
    except OSError as error:
        bound.close()
        raise InvalidRequest(
            f"cannot listen on {address}: {error.strerror or error}; --http_port 0 takes a free "
            "port"
        ) from error
    return bound


class HttpServer(uvicorn.Server):
    """Serves an application until a signal.

    connections: maximum concurrent connections
    when_ready: called once the server accepts requests
    settings: further settings of uvicorn
    """

    def __init__(
        self,
        app: FastAPI,
        connections: int,
        when_ready: Callable[[], object] = lambda: None,
        **settings: Any,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=partial(BoundedConnection, connections),  # type: ignore[arg-type]
            ws="none",
            loop="asyncio",  # uvloop drops the answer to a half-closed client
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS + 1,
            backlog=ACCEPTED,
            **settings,
        )
        super().__init__(config)
        self._when_ready = when_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(OutOfDescriptors(self.server_state))
        await super().startup(sockets)
        for bound in sockets or []:
            bound.listen(QUEUED)  # replaces ACCEPTED, which uvicorn has set
        self._when_ready()
