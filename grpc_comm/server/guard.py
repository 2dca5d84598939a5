"""Protects a listening target: its certificate, the keys that admit calls, and the size limits of
messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, NoReturn, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from grpc_comm.keys import WATCH_SECONDS, Grant, Keys
from grpc_comm.observability.metrics import Metrics
from grpc_comm.security import SecurityOptions, read_tls, read_token
from grpc_comm.server.tasks import cancel, mark_retrieved
from grpc_comm.statuses import status_code
from grpc_comm.transport import Address
from inference.errors import InvalidRequest, LimitExceeded

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_HEALTH_CHECK = "/grpc.health.v1.Health/Check"
_UNREADABLE = "a message that cannot be read: the client does not speak this protocol"
_WITHDRAWN = "this key was removed from the target's keys during the call"


class ServerSecurity(NamedTuple):
    """Secrets of a listening target. Credentials None mean plaintext."""

    credentials: grpc.ServerCredentials | None
    keys: Keys


def server_security(options: SecurityOptions, address: Address) -> ServerSecurity:
    """Return a listening target's credentials and keys.

    Raises InvalidRequest if listening at the address with these options would expose the target.
    """
    if options.encrypted and (options.tls_cert is None or options.tls_key is None):
        raise InvalidRequest(
            "a target with TLS needs a certificate of its own: --tls_cert and --tls_key"
        )
    secret = options.token_file or options.keys_file
    if not (address.loopback or options.insecure or (options.encrypted and secret)):
        need = (
            "--tls_cert, --tls_key and --keys_file or --token_file (or --insecure, if the "
            "network is trusted)"
        )
        raise InvalidRequest(
            f"listening on {address.host} opens the target to other machines: it needs {need}"
        )
    if secret and not options.encrypted and not address.loopback:
        raise InvalidRequest(
            f"on {address.host} tokens would travel in plaintext: it needs --tls_cert and --tls_key"
        )
    keys = read_keys(options)
    authority, key, certificate = read_tls(options)
    if key is None or certificate is None:
        return ServerSecurity(None, keys)
    credentials = grpc.ssl_server_credentials(
        [(key, certificate)], authority, require_client_auth=authority is not None
    )
    return ServerSecurity(credentials, keys)


def read_keys(options: SecurityOptions) -> Keys:
    """Return the keys of a target; raise InvalidRequest for an invalid file."""
    if options.keys_file is not None:
        return Keys.read(options.keys_file)
    return (
        Keys.open() if options.token_file is None else Keys.single(read_token(options.token_file))
    )


class CallGuard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg, unused-ignore]  # generic in some stubs
    """Admits calls of all methods as long as their token belongs to a key.

    Other calls end with UNAUTHENTICATED, and none of their messages is read. A stream ends the same
    way when its key is removed. Health.Check for the whole target needs no token.

    A message that is longer than its sender's key allows is not parsed. It ends its call with
    INVALID_ARGUMENT, and so does a message that cannot be parsed: gRPC would answer with UNKNOWN
    and the name of a Python class, and log an ERROR.
    """

    def __init__(self, keys: Keys, metrics: Metrics) -> None:
        self._keys, self._metrics = keys, metrics

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        grant = self._keys.grant(handler_call_details.invocation_metadata)
        if grant is None and handler_call_details.method != _HEALTH_CHECK:
            return grpc.stream_stream_rpc_method_handler(_refuse_stream)
        handler = await continuation(handler_call_details)
        if handler is None:  # no such method
            return None
        if grant is None:
            return _unread(handler)
        if self._keys.required and handler.response_streaming:
            handler = _while_granted(handler, grant)
        return _parsed(handler, grant, self._metrics)


async def refuse(context: Context) -> NoReturn:
    """End a call that has no valid token."""
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED, "the token is missing or wrong (--token_file)"
    )


async def _refuse_stream(_messages: Any, context: Any) -> None:
    await refuse(context)


def _unread(handler: Any) -> Any:
    """Return a unary handler that answers as if the request were empty. The actual request is not
    read, so it takes no memory, whatever its length.
    """

    async def answer(_messages: Any, context: Any) -> None:
        await context.write(await handler.unary_unary(handler.request_deserializer(b""), context))

    return grpc.stream_stream_rpc_method_handler(answer, None, handler.response_serializer)


def _parsed(handler: Any, grant: Grant, metrics: Metrics) -> Any:
    """Wrap a handler so that messages are parsed only if they are not too long.

    For an invalid message, reading the stream raises InvalidRequest, which the method reports.
    """

    def parse(message: bytes) -> Any:
        limit = grant.key.message_bytes
        if limit is not None and len(message) > limit:
            got = f"a message of {len(message)} bytes"
            raise LimitExceeded(f"{got}: this key may send {limit} at once")
        try:
            return handler.request_deserializer(message)
        except DecodeError as error:
            raise InvalidRequest(_UNREADABLE) from error

    if handler.request_streaming:
        return handler._replace(request_deserializer=parse)
    shape = _shape(handler)
    method = getattr(handler, shape)

    async def answer(message: bytes, context: Any) -> Any:
        try:
            request = parse(message)
        except InvalidRequest as error:
            code = status_code(error)
            metrics.reject(code.name, grant.key.name)
            await context.abort(code, str(error))
        return await method(request, context)

    return handler._replace(request_deserializer=None, **{shape: answer})


def _while_granted(handler: Any, grant: Grant) -> Any:
    """Wrap the handler of a response stream so that the stream ends when its key is removed."""
    shape = _shape(handler)
    method = getattr(handler, shape)

    async def answer(request: Any, context: Any) -> Any:
        task = asyncio.ensure_future(method(request, context))
        task.add_done_callback(mark_retrieved)
        try:
            while not (task.done() or grant.withdrawn):
                await asyncio.wait({task}, timeout=WATCH_SECONDS)
        finally:  # also when the call breaks
            await cancel(task)
        if task.cancelled() and grant.withdrawn:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, _WITHDRAWN)
        return task.result()

    return handler._replace(**{shape: answer})


def _shape(handler: Any) -> str:
    """Return the name of the handler's attribute with its method, such as stream_unary."""
    request = "stream" if handler.request_streaming else "unary"
    return f"{request}_{'stream' if handler.response_streaming else 'unary'}"
