"""Ends calls whose message cannot be parsed, or is longer than its sender's key allows.

gRPC parses before it calls a method. It answers a parse error with UNKNOWN, the name of a Python
class, and an ERROR in the log. Here the call ends with the code that the protocol lists.
Session reads its messages itself (grpc_comm/server/request_reader.py).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from grpc_comm.observability.server_events import CallRejected, Listener
from grpc_comm.statuses import status_code
from inference.errors import InvalidRequest

BREAK_SECONDS = 0.1
"""Seconds that may pass between the end of a broken call's messages and gRPC's cancellation."""

UNREADABLE = "a message that cannot be read: the client does not speak this protocol"


class ReadingInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg, unused-ignore]  # as there
    """Reports messages that could not be parsed. Precedes interceptors that limit parsing."""

    def __init__(self, emit: Listener) -> None:
        self._emit = emit

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        shape = "stream" if handler.request_streaming else "unary"
        shape += "_stream" if handler.response_streaming else "_unary"
        method = getattr(handler, shape)
        many = inspect.isasyncgenfunction(method)
        if handler.request_streaming and not many:
            return handler  # Session is a coroutine, and not wrapped
        parse = _parsed_or_refused(handler.request_deserializer)
        wrapped = self._many(method) if many else self._once(method)
        return handler._replace(**{shape: wrapped, "request_deserializer": parse})

    def _once(self, method: Any) -> Any:
        async def answer(request: Any, context: Any) -> Any:
            await self._check(request, context)
            return await method(request, context)

        return answer

    def _many(self, method: Any) -> Any:
        """Wrap a method that streams answers, to one message or to a stream of them."""

        async def answers(requests: Any, context: Any) -> AsyncIterator[Any]:
            if hasattr(requests, "__aiter__"):
                requests = self._checked(requests, context)
            else:
                await self._check(requests, context)
            async with aclosing(method(requests, context)) as messages:
                async for message in messages:
                    yield message

        return answers

    async def _checked(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            await self._check(request, context)
            yield request
        await asyncio.sleep(BREAK_SECONDS)

    async def _check(self, request: Any, context: Any) -> None:
        """End the call if its message was refused."""
        if isinstance(request, InvalidRequest):
            code = status_code(request)
            self._emit(CallRejected(code.name))
            await context.abort(code, str(request))


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
