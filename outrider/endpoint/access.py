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
        lines = [line.strip() for line in read_secret(path, flag).decode().splitlines()]
    except UnicodeDecodeError as error:
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


class CallerCheck:
    """Checks the key and the origin of a request.

    keys: a request needs one of them; empty: no key is required
    admin_keys: further keys; if any keys are set, admin() accepts only these
    origins: origins of other sites' pages that may call the server. Browsers send the origin of the
        page; other programs send none

    `request.state.caller` is the caller's key if several keys exist, else empty.
    """

    def __init__(
        self, keys: Sequence[str], admin_keys: Sequence[str] = (), origins: Sequence[str] = ()
    ) -> None:
        self._keys, self._admins = list(dict.fromkeys((*keys, *admin_keys))), set(admin_keys)
        self._closed, self._origins = bool(keys), frozenset(origins)

    async def check(self, request: Request) -> None:
        origin = request.headers.get("origin")
        server = f"{request.url.scheme}://{request.headers.get('host')}"
        if origin is not None and origin != server and origin not in self._origins:
            words = f"pages of {origin} may not call this server: see --origins"
            raise ApiError(403, words, kind="invalid_request_error")
        key = self._key(request)
        request.state.caller = key if len(self._keys) > 1 else ""
        if self._closed and not key:
            words = "a key is needed: send it as `Authorization: Bearer KEY`"
            raise ApiError(401, words, code="invalid_api_key")

    async def admin(self, request: Request) -> None:
        """Accept only administrators, who may change the target for all callers."""
        if self._keys and self._key(request) not in self._admins:
            words = "an administrator's key is needed for this: see --admin_keys"
            raise ApiError(403, words, code="admin_key_needed")

    def _key(self, request: Request) -> str:
        """Return the request's key; empty if it has no valid key."""
        scheme, _, credential = request.headers.get("authorization", "").partition(" ")
        bearer = credential.strip() if scheme.lower() == "bearer" else ""
        sent = (bearer or request.headers.get("x-api-key", "")).encode()
        matches = [hmac.compare_digest(sent, key.encode()) for key in self._keys]  # constant time
        return self._keys[matches.index(True)] if any(matches) else ""


class RequestBounds:
    """Middleware that refuses a body of more than MAX_BODY_BYTES; and, closing the connection, a
    head with an unknown host, two kinds of length (request smuggling), or too many bytes.

    hosts: host names that the server accepts, in lower case; empty to accept any
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app, self._hosts = app, frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refusal(scope) if scope["type"] == "http" else None
        if refused is not None:
            response = refused.response()
            response.headers["Connection"] = "close"
            return await response(scope, receive, send)
        size = 0

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_BODY_BYTES:
                raise HTTPException(413, f"the maximum size of a body is {MAX_BODY_BYTES} bytes")
            return message

        await self._app(scope, bounded, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        name = _HOST.fullmatch(host)
        if self._hosts and (name is None or name[1].lower() not in self._hosts):
            return ApiError(400, f"unknown host {host!r}: --origins allows further hosts")
        if "content-length" in headers and "transfer-encoding" in headers:
            return ApiError(400, "Content-Length and Transfer-Encoding exclude each other")
        lines = [scope["raw_path"], scope["query_string"], *map(b": ".join, headers.raw)]
        if sum(map(len, lines)) > MAX_HEAD_BYTES:
            return ApiError(431, f"the maximum size of a head is {MAX_HEAD_BYTES} bytes")
        return None
