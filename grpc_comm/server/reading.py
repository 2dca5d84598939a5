"""Reads clients' messages, and ends calls whose message is invalid or too long for its key.

gRPC parses before it calls a method. It answers a parse error with UNKNOWN, the name of a Python
class, and an ERROR in the log. Here the call ends with the code that the protocol lists.
Session reads its messages itself, by an Inbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from grpc_comm.observability.metrics import Metrics
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.statuses import status_code
from inference.errors import Gone, InvalidRequest

BREAK_SECONDS = 0.1
"""Seconds that may pass between the end of a broken call's messages and gRPC's cancellation."""

_UNREADABLE = "a message that cannot be read: the client does not speak this protocol"


class ReadingInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg, unused-ignore]  # as there
    """Reports messages that could not be parsed. Precedes interceptors that limit parsing."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None or handler.request_streaming:
            return handler
        shape = "unary_stream" if handler.response_streaming else "unary_unary"
        method = getattr(handler, shape)

        async def answer(request: Any, context: Any) -> Any:
            if isinstance(request, InvalidRequest):
                code = status_code(request)
                self._metrics.reject(code.name)
                await context.abort(code, str(request))
            return await method(request, context)

        parse = _parsed_or_refused(handler.request_deserializer)
        return handler._replace(**{shape: answer, "request_deserializer": parse})


def _parsed_or_refused(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return a parser that yields the message, or the reason why it is refused."""

    def read(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            return InvalidRequest(_UNREADABLE)
        except InvalidRequest as error:
            return error

    return read


class Inbox:
    """A client's messages, one at a time. While none is read, gRPC makes the sender wait."""

    def __init__(self, requests: AsyncIterator[pb.ClientMessage], metrics: Metrics) -> None:
        self._requests, self._bytes = requests, metrics.bytes_up
        self._loop = asyncio.get_running_loop()
        self._waiting_since: float | None = None

    async def first(self, seconds: float) -> pb.ClientMessage | None:
        """Return the first message. Raises Gone when none has arrived after so many seconds."""
        taking = asyncio.ensure_future(self.take())
        await asyncio.wait({taking}, timeout=seconds)
        if not taking.done():
            taking.cancel()
            raise _silence(seconds)
        return taking.result()

    async def take(self) -> pb.ClientMessage | None:
        """Return the next message; None when the client has no more.

        Raises InvalidRequest for bytes that are not a message, and what reading raised.
        """
        self._waiting_since = self._loop.time()
        try:
            message = await anext(self._requests, None)
        except DecodeError as error:
            raise InvalidRequest(_UNREADABLE) from error
        self._waiting_since = None
        if message is not None:
            self._bytes.inc(message.ByteSize())
        return message

    async def silence(self, seconds: float) -> None:
        """Wait until nothing has arrived for so many seconds, then raise Gone."""
        while True:
            since, now = self._waiting_since, self._loop.time()
            if since is not None and now - since >= seconds:
                raise _silence(seconds)
            await asyncio.sleep(seconds - (now - since) if since is not None else seconds)


def _silence(seconds: float) -> Gone:
    return Gone(f"no message for {seconds:g} s: the client counts as disconnected")
