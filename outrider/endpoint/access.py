"""Who may use the server: keys, the hosts it may be called by, and origins of pages."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from pathlib import Path

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grpc_comm.permissions import read_secret
from grpc_comm.transport import Address
from inference.errors import InvalidRequest
from outrider.endpoint.failures import ApiError
from outrider.endpoint.requests import MOST_BYTES

LEAST_KEY = 16
"""Characters of a key at least."""

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def read_keys(path: Path | None) -> tuple[str, ...]:
    """The keys in a file, one a line; lines that begin with # are comments. Empty without a file.

    Raises InvalidRequest for a file without keys, for a key that is easily guessed, and for a file
    that others may read.
    """
    if path is None:
        return ()
    try:
        lines = [line.strip() for line in read_secret(path).decode().splitlines()]
    except InvalidRequest as error:
        raise InvalidRequest(f"--api_keys {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"--api_keys {path} cannot be read: {error}") from error
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    short = [key for key in keys if len(key) < LEAST_KEY]
    if not keys or short:
        raise InvalidRequest(
            f"--api_keys {path}: one key a line of {LEAST_KEY} characters or more is needed, got "
            + (f"one of {len(short[0])}" if short else "none")
        )
    return keys


def allowed_hosts(host: str) -> list[str]:
    """Names by which the server may be called. Others are refused on a loopback address, because a
    page elsewhere could let its own name point here.
    """
    return [*_LOOPBACK, host] if Address(host, 0).loopback else ["*"]


class KeyCheck:
    """Lets requests pass that carry one of the keys; all of them where there are no keys."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [key.encode() for key in keys]

    async def __call__(self, request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        sent = given.strip().encode() if scheme.lower() == "bearer" else b""
        matches = [hmac.compare_digest(sent, key) for key in self._keys]  # all, for an even time
        if self._keys and not any(matches):
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
