"""Ends calls whose message cannot be parsed, or is longer than its sender's key allows.

gRPC parses before it calls a method. It answers a parse error with UNKNOWN, the name of a Python
class, and an ERROR in the log. Here the call ends with the code that the protocol lists.
Session reads its messages itself (grpc_comm/server/request_reader.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from grpc_comm.observability.metrics import Metrics
from grpc_comm.statuses import status_code
from inference.errors import InvalidRequest

BREAK_SECONDS = 0.1
"""Seconds that may pass between the end of a broken call's messages and gRPC's cancellation."""

UNREADABLE = "a message that cannot be read: the client does not speak this protocol"


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
            return InvalidRequest(UNREADABLE)
        except InvalidRequest as error:
            return error

    return read
