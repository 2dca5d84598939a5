"""Checks HTTP requests: their keys, hosts, origins and sizes."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from fastapi import Request
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grpc_comm.security import read_secret
from grpc_comm.transport import Address
from inference.errors import InvalidRequest
from outrider.endpoint.interfaces.chat_messages import MAX_BODY_BYTES
from outrider.endpoint.interfaces.failures import ApiError

MIN_KEY = 16
"""Minimum length of a key."""

MAX_HEAD_BYTES = 64 * 2**10
"""Maximum bytes of a request's head."""

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:@/\[\]]+)(:[0-9]*)?", re.IGNORECASE)


def read_keys(path: Path | None, flag: str = "--api_keys") -> tuple[str, ...]:
    """Read keys from a file, one per line; lines that begin with # are comments. Empty for None.

    Raises InvalidRequest for a file without keys, for a file that other users may read, and for a
    key that is easily guessed.
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
    short = [key for key in keys if len(key) < MIN_KEY]
    if not keys or short:
        raise InvalidRequest(
            f"{flag} {path}: one key a line of {MIN_KEY} characters or more is needed, got "
            + (f"one of {len(short[0])}" if short else "none")
        )
    return keys


def allowed_hosts(host: str, origins: Sequence[str] = ()) -> list[str]:
    """Return the Host headers that the server accepts, in lower case; empty to accept any.

    On a loopback address only these are accepted: a web page could resolve its own name to it.
    """
    if not Address(host, 0).loopback:
        return []
    names = [urlsplit(origin).netloc.rpartition("@")[2] for origin in origins]
    public = [match[1] for name in names if (match := _HOST.fullmatch(name))]
    return [name.lower() for name in (*_LOOPBACK, host, *public)]


class KeyCheck:
    """Accepts requests that have one of the keys; if no keys are set, accepts every request.

    admin_keys: further keys; if any keys are set, admin() accepts only these

    `request.state.caller` is the caller's key if several keys exist, else empty.
    """

    def __init__(self, keys: Sequence[str], admin_keys: Sequence[str] = ()) -> None:
        self._keys, self._admins = list(dict.fromkeys((*keys, *admin_keys))), set(admin_keys)
        self._closed = bool(keys)

    def _key(self, request: Request) -> str:
        """Return the request's key; empty if it has no valid key."""
        scheme, _, credential = request.headers.get("authorization", "").partition(" ")
        bearer = credential.strip() if scheme.lower() == "bearer" else ""
        sent = (bearer or request.headers.get("x-api-key", "")).encode()
        matches = [hmac.compare_digest(sent, key.encode()) for key in self._keys]  # constant time
        return self._keys[matches.index(True)] if any(matches) else ""

    async def admin(self, request: Request) -> None:
        """Accept only administrators, who may change the target for all callers."""
        if self._keys and self._key(request) not in self._admins:
            raise ApiError(
                403,
                "an administrator's key is needed for this: see --admin_keys",
                "permission_error",
                code="admin_key_needed",
            )

    async def check(self, request: Request) -> None:
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
    """Refuses requests from web pages of other origins, except for the allowed origins.

    Browsers send the origin of the page; other programs send none.
    """

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origins)

    async def check(self, request: Request) -> None:
        origin = request.headers.get("origin")
        server = f"{request.url.scheme}://{request.headers.get('host')}"
        if origin is not None and origin != server and origin not in self._origins:
            raise ApiError(403, f"pages of {origin} may not call this server: see --origins")


class HeadCheck:
    """Middleware that refuses a request, and closes its connection, if its head has an unknown
    host, two kinds of length (request smuggling), or too many bytes.

    names: host names that the server accepts, in lower case; empty to accept any
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
        name = _HOST.fullmatch(host)
        if self._names and (name is None or name[1].lower() not in self._names):
            return ApiError(400, f"unknown host {host!r}: --origins allows further hosts")
        if "content-length" in headers and "transfer-encoding" in headers:
            return ApiError(400, "Content-Length and Transfer-Encoding exclude each other")
        lines = [
            scope["raw_path"],
            scope["query_string"],
            *(b": ".join(header) for header in headers.raw),
        ]
        if sum(map(len, lines)) > MAX_HEAD_BYTES:
            return ApiError(431, f"the maximum size of a head is {MAX_HEAD_BYTES} bytes")
        return None


class BodyBound:
    """Middleware that refuses request bodies of more than MAX_BODY_BYTES."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_BODY_BYTES:
                raise HTTPException(413, f"the maximum size of a body is {MAX_BODY_BYTES} bytes")
            return message

        await self._app(scope, bounded, send)
