"""Converts Outrider's errors to gRPC status codes and back, and explains gRPC's own messages."""

from __future__ import annotations

import re

import grpc

from grpc_comm.translate import plain
from inference.errors import Busy, Gone, InvalidRequest, Mismatch, OutriderError, Unavailable

_ERRORS: tuple[tuple[type[OutriderError], grpc.StatusCode], ...] = (
    (InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),  # LimitExceeded included
    (Mismatch, grpc.StatusCode.FAILED_PRECONDITION),
    (Busy, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Gone, grpc.StatusCode.NOT_FOUND),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
    (OutriderError, grpc.StatusCode.INTERNAL),
)
"""Status codes by class of error; the first matching class is sent. A received code becomes its
class. UNAUTHENTICATED is only received.
"""


def status_code(error: OutriderError) -> grpc.StatusCode:
    return next(code for kind, code in _ERRORS if isinstance(error, kind))


_REASONS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(words, re.IGNORECASE), plainly)
    for words, plainly in (
        ("refused", "connection refused"),
        ("resol", "the name has no address"),
        ("unreachable|no route", "no route to the host"),
        ("deadline|timeout|timed out", "no answer in time"),
        ("handshake|certificate", "no TLS connection"),
        ("reset|removed|closed|pipe|RST_STREAM|GOAWAY", "the connection was lost"),
    )
)
"""Explanations of gRPC's messages about a connection; the first match applies. Only a traceback
(--debug) shows the original message.
"""


def status_error(error: grpc.RpcError, unreachable: str) -> OutriderError:
    """Return Outrider's exception for a failed RPC.

    unreachable: message for a target that did not answer
    """
    code, details = error.code(), plain((error.details() or "").strip())
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return InvalidRequest(f"the target refuses this client: {details}")
    kind = {code: kind for kind, code in _ERRORS}.get(code, Unavailable)
    if kind is Unavailable or (kind is OutriderError and not details.startswith(FAULT)):
        reason = _reason(error, details)
        return Unavailable(f"{unreachable} ({reason})" if reason else unreachable)
    if kind is Busy:
        return Busy(details, _retry_after(error))
    return kind(details)


def _reason(error: grpc.RpcError, details: str) -> str:
    """Return why a target is not available: the target's message, or gRPC's in plain English; empty
    if neither adds information.
    """
    if _trailing(error, FROM_TARGET):
        return details
    code = error.code()
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return "it is another kind of gRPC server"
    reasons = (plainly for words, plainly in _REASONS if words.search(f"{code.name} {details}"))
    return next(reasons, "")


FROM_TARGET = "outrider-error"
"""Trailing metadata of a call that a target ended with UNAVAILABLE. It marks the message as the
target's, not gRPC's.
"""

RETRY_AFTER = "retry-after-ms"
"""Trailing metadata of a call refused for lack of room: milliseconds after which to retry."""


def _retry_after(error: grpc.RpcError) -> float:
    milliseconds = _trailing(error, RETRY_AFTER)
    return int(milliseconds) / 1e3 if milliseconds.isdigit() else 1.0


def _trailing(error: grpc.RpcError, name: str) -> str:
    """Return a value from the trailing metadata of a call; empty if it is absent."""
    metadata: tuple[tuple[str, str | bytes], ...] = tuple(error.trailing_metadata() or ())  # type: ignore[arg-type]  # the stubs' pairs are opaque
    return next((str(value) for key, value in metadata if key == name), "")


FAULT = "a fault in the target"
"""Prefix of the status message of Outrider's internal errors, which distinguishes them from gRPC's
own INTERNAL messages. It is part of the protocol.
"""
