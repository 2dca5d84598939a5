"""Bounds of the server's use: keys, hosts that it may be called by, origins of pages, sizes of
requests, and the number and patience of connections.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import h11
from fastapi import Request
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from grpc_comm.permissions import read_secret
from grpc_comm.transport import Address
from inference.errors import InvalidRequest
from outrider.endpoint.chat_messages import MOST_BYTES
from outrider.endpoint.failures import ApiError

LEAST_KEY = 16
"""Characters of a key at least."""

MOST_HEAD = 64 * 2**10
"""Bytes of a request's head at most."""

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:@/\[\]]+)(:[0-9]*)?", re.IGNORECASE)


def read_keys(path: Path | None, flag: str = "--api_keys") -> tuple[str, ...]:
    """The keys in a file, one a line; lines that begin with # are comments. Empty without a file.

    Raises InvalidRequest for a file without keys, for a key that is easily guessed, and for a file
    that others may read.
    """
    if path is None:
        return ()
    try:
        lines = [line.strip() for line in read_secret(path).decode().splitlines()]
    except InvalidRequest as error:
        raise InvalidRequest(f"{flag} {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{flag} {path} cannot be read: {error}") from error
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    short = [key for key in keys if len(key) < LEAST_KEY]
    if not keys or short:
        raise InvalidRequest(
            f"{flag} {path}: one key a line of {LEAST_KEY} characters or more is needed, got "
            + (f"one of {len(short[0])}" if short else "none")
        )
    return keys


def allowed_hosts(host: str, origins: Sequence[str] = ()) -> list[str]:
    """Host headers that the server accepts, in lower case; empty for any.

    On a loopback address there are few, since a page elsewhere could let its own name point here.
    """
    if not Address(host, 0).loopback:
        return []
    names = [urlsplit(origin).netloc.rpartition("@")[2] for origin in origins]
    named = [match[1] for name in names if (match := _HOST.fullmatch(name))]
    return [name.lower() for name in (*_LOOPBACK, host, *named)]


class KeyCheck:
    """Lets requests pass that carry one of the keys; all of them where there are no keys.

    admin_keys: are keys, too, and the only ones that admin() lets pass where there are any keys

    `request.state.caller` tells callers apart: the key where there are several, else empty.
    """

    def __init__(self, keys: Sequence[str], admin_keys: Sequence[str] = ()) -> None:
        self._keys, self._admins = list(dict.fromkeys((*keys, *admin_keys))), set(admin_keys)
        self._closed = bool(keys)

    def _key(self, request: Request) -> str:
        """The key that a request carries; empty for none that is known."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        bearer = given.strip() if scheme.lower() == "bearer" else ""
        sent = (bearer or request.headers.get("x-api-key", "")).encode()
        known = [hmac.compare_digest(sent, key.encode()) for key in self._keys]  # all: even time
        return self._keys[known.index(True)] if any(known) else ""

    async def admin(self, request: Request) -> None:
        """Let administrators pass: who may change what everybody uses."""
        if self._keys and self._key(request) not in self._admins:
            raise ApiError(
                403,
                "an administrator's key is needed for this: see --admin_keys",
                "permission_error",
                code="admin_key_needed",
            )

    async def __call__(self, request: Request) -> None:
        key = self._key(request)
        request.state.caller = key if len(self._keys) > 1 else ""
        if self._closed and not key:
            raise ApiError(
                401,
                "a key is needed: send it as `Authorization: Bearer KEY`",
                "authentication_error",
                code="invalid_api_key",
            )


class OriginCheck:
    """Refuses requests that a page of another origin makes, except for the origins given.

    A browser names the origin of the page. Programs name none.
    """

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origins)

    async def __call__(self, request: Request) -> None:
        origin = request.headers.get("origin")
        own = f"{request.url.scheme}://{request.headers.get('host')}"
        if origin is not None and origin != own and origin not in self._origins:
            raise ApiError(403, f"pages of {origin} may not call this server: see --origins")


class HeadCheck:
    """Middleware that refuses a request for its head, and closes the connection: a foreign name
    of the server, a length said in two ways (request smuggling), too many bytes.

    names: by which the server may be called, in lower case; empty for any
    """

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app, self._names = app, frozenset(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refusal(scope) if scope["type"] == "http" else None
        if refused is None:
            return await self._app(scope, receive, send)
        response = refused.response()
        response.headers["Connection"] = "close"
        await response(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        named = _HOST.fullmatch(host)
        if self._names and (named is None or named[1].lower() not in self._names):
            return ApiError(400, f"unknown host {host!r}: --origins allows further hosts")
        if "content-length" in headers and "transfer-encoding" in headers:
            return ApiError(400, "Content-Length and Transfer-Encoding exclude each other")
        lines = [
            scope["raw_path"],
            scope["query_string"],
            *(b": ".join(one) for one in headers.raw),
        ]
        if sum(map(len, lines)) > MOST_HEAD:
            return ApiError(431, f"a request's head has {MOST_HEAD} bytes at most")
        return None


class BodyBound:
    """Middleware that reads MOST_BYTES of a request's body at most, and refuses larger ones."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        read = 0

        async def bounded() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > MOST_BYTES:
                raise HTTPException(413, f"a request's body has {MOST_BYTES} bytes at most")
            return message

        await self._app(scope, bounded, send)


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
        others = set(self.connections)
        super().connection_made(transport)
        if len(others) >= self._most and not self.make_room(others):
            return self._refuse()
        self._watch()

    @staticmethod
    def make_room(connections: Iterable[Any]) -> bool:
        """End the connection that has waited longest for a request. Returns whether there was
        one.
        """
        waiting = [one for one in connections if isinstance(one, BoundedConnection) and one.waiting]
        if waiting:
            min(waiting, key=lambda one: one.waiting_since).end()
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
                f"all of {self._most} connections are in use: ask again later",
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
