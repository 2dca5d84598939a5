"""File descriptors of the server: connections stay within what the process may open, and a server
that has run out of descriptors recovers.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import time
from typing import Any

from uvicorn.server import ServerState

from inference.command import say
from inference.errors import InvalidRequest
from outrider.endpoint.access import BoundedConnection

ACCEPTED = 16
"""Connections that are accepted in a row. Without a free descriptor asyncio tries all of them, and
sets a timer for each.
"""

QUEUED = 512
"""Connections that the system holds until they are accepted."""

SPARE = 64
"""Descriptors that are left for models, logs and the target."""

_ENOUGH = 10_240  # macOS allows no more
_NOTE_SECONDS = 60.0


def bounded(connections: int) -> int:
    """Raise the limit of open files as far as the system allows. Returns `connections`, or fewer
    where more would leave less than SPARE descriptors.

    Raises InvalidRequest where there is no room for ACCEPTED connections.
    """
    if sys.platform == "win32":  # sockets are no files there
        return connections
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
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
    """Handles errors of an event loop. Where no descriptor is free for a new connection, the one
    that has waited longest for a request makes room, and a line says so, once a minute at most.

    state: has the connections of the server
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
