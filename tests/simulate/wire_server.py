"""The target's half of gRPC's asyncio server over the simulated network.

Handlers, interceptors and their contexts are the product's own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio

from tests.simulate.kernel import kernel
from tests.simulate.network import Network, Pipe
from tests.simulate.wire_client import WINDOW, Call
from tests.support.wire_fixtures import Metadata, RpcFailure

BREAK_SECONDS = 0.05
"""The longest by which the end of a broken call's messages may come before its cancellation."""

Tap = Callable[["Served", str, bytes], None]
"""Hears each message of a call where the target stands: "up" when it is read, "down" when sent."""


class Served:
    """A call, as the target sees it: its messages, and a servicer's context.

    parse, serialize: make messages of bytes, and bytes of messages
    gone: the client left, or the connection broke
    """

    def __init__(self, server: Server, pipe: Pipe, call: Call) -> None:
        self.server, self.pipe, self.call = server, pipe, call
        self.gone, self.unread, self._taken = False, 0, 0
        self.ended = False  # a status was sent
        self.parse: Callable[[bytes], Any] = bytes
        self.serialize: Callable[[Any], bytes] = bytes
        self.task: asyncio.Task[None] | None = None
        self._inbox: deque[bytes] = deque()
        self._no_more = False
        self._changed = asyncio.Event()

    # From the network.

    def came(self, data: bytes) -> None:
        self._inbox.append(data)
        self._notify()

    def no_more(self) -> None:
        self._no_more = True
        self._notify()

    def was_read(self, size: int) -> None:
        self.unread -= size
        self._notify()

    def reset(self) -> None:
        """The client has left, or the connection is lost."""
        if self.gone or self.ended:
            return
        self.gone = self._no_more = True
        self.server.streams.pop(self, None)
        self._notify()
        early = BREAK_SECONDS * kernel().chance.random()
        kernel().after(early, lambda: self.server.call_soon(self._cancel))

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def _notify(self) -> None:
        self.server.call_soon(self._changed.set)

    # For the handler.

    def __aiter__(self) -> Served:
        return self

    async def __anext__(self) -> Any:
        while not self._inbox:
            if self._no_more:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        data = self._inbox.popleft()
        self._taken += len(data)
        if self._taken > WINDOW // 2:
            size, self._taken = self._taken, 0
            self.pipe.send(1, 13, lambda: self.call.was_read(size))
        self.server.tap(self, "up", data)
        return self.parse(data)

    def invocation_metadata(self) -> Metadata:
        return self.call.metadata

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()
    ) -> None:
        self.status(code, details, tuple(trailing_metadata))
        raise grpc.aio.AbortError("Locally aborted.")

    async def write(self, message: Any) -> None:
        data = self.serialize(message)
        if self.gone or self.ended:
            raise grpc.aio.UsageError("RPC already finished.")
        self.unread += len(data)
        self.server.tap(self, "down", data)
        self.pipe.send(1, len(data) + 14, lambda: self.call.answered(data))
        while self.unread > WINDOW:
            if self.gone:
                raise grpc.aio.UsageError("RPC already finished.")
            self._changed.clear()
            await self._changed.wait()

    def status(self, code: grpc.StatusCode, words: str = "", trailing: Metadata = ()) -> None:
        if self.ended or self.gone:
            return
        self.ended = True
        self.server.streams.pop(self, None)
        end = RpcFailure(code, words, trailing)
        self.pipe.send(1, 40 + len(words), lambda: self.call.finish(end))


class Server:
    """A server of asyncio. It serves on the loop that starts it."""

    def __init__(self, network: Network, interceptors: Sequence[Any], tap: Tap) -> None:
        fiber = kernel().current
        assert fiber is not None
        self.process, self.tap = fiber.process, tap
        self.streams: dict[Served, None] = {}
        self.process.holds["streams"] = self.streams
        self._network, self._interceptors = network, interceptors
        self._handlers: list[Any] = []
        self._address, self._accepts = "", False
        self._loop = asyncio.get_running_loop()
        self._pipes: dict[Pipe, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self._handlers += handlers

    def add_registered_method_handlers(self, *_: Any) -> None: ...

    def add_insecure_port(self, address: str) -> int:
        before = self._network.listeners.get(address)
        if before is not None and not before.process.dead:
            raise RuntimeError("the port is in use")
        self._address = address
        self._network.listeners[address] = self
        return int(address.rpartition(":")[2])

    async def start(self) -> None:
        self._accepts = True

    async def stop(self, grace: float | None) -> None:
        """End as gRPC does: no new calls, then those that are left are cancelled."""
        if self._network.listeners.get(self._address) is self:
            del self._network.listeners[self._address]
        self._accepts = False
        for pipe in self._pipes:
            pipe.send(1, 17, lambda pipe=pipe: pipe.ends[0].going_away())  # type: ignore[misc]
        until = self._loop.time() + (grace or 0.0)
        while self.streams and self._loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        for pipe in list(self._pipes):
            pipe.cut("Cancelling all calls")
        for served in list(self.streams):
            served.reset()

    # From the network.

    def accept(self, pipe: Pipe, call: Call) -> None:
        served = call.peer = Served(self, pipe, call)
        self._pipes[pipe] = None
        if not self._accepts:
            return served.status(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
        self.streams[served] = None
        self.call_soon(lambda: self._begin(served))

    def lost(self, pipe: Pipe, words: str) -> None:
        self._pipes.pop(pipe, None)
        for served in [one for one in self.streams if one.pipe is pipe]:
            served.reset()

    def call_soon(self, call: Callable[[], Any]) -> None:
        """Call it on the loop, if that has not ended."""
        if not (self._loop.is_closed() or kernel().over):
            self._loop.call_soon_threadsafe(call)

    def _begin(self, served: Served) -> None:
        served.task = self._loop.create_task(self._serve(served))
        self._tasks.add(served.task)
        served.task.add_done_callback(self._tasks.discard)

    async def _serve(self, served: Served) -> None:
        try:
            await self._answer(served)
            served.status(grpc.StatusCode.OK)
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            served.status(grpc.StatusCode.CANCELLED, "cancelled by the server")
        except Exception as error:  # as gRPC, which logs it as an error
            if not served.gone:
                kernel().crashes.append(f"unexpected in a call: {error!r}")
            served.status(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")

    async def _answer(self, served: Served) -> None:
        method, metadata = served.call.method, served.call.metadata
        details = SimpleNamespace(method=method, invocation_metadata=metadata)
        handler = await self._find(0, details)
        if handler is None:
            return served.status(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        served.parse = handler.request_deserializer or bytes
        served.serialize = handler.response_serializer or bytes
        if not handler.request_streaming:
            request = await anext(served, None)
            if request is not None:
                await served.write(await handler.unary_unary(request, served))
            return
        await handler.stream_stream(served, served)

    async def _find(self, at: int, details: SimpleNamespace) -> Any:
        """The handler of a method, through the interceptors from one on."""
        if at == len(self._interceptors):
            found = (handlers.service(details) for handlers in self._handlers)
            return next((one for one in found if one is not None), None)

        def go_on(details: Any) -> Awaitable[Any]:
            return self._find(at + 1, details)

        return await self._interceptors[at].intercept_service(go_on, details)
