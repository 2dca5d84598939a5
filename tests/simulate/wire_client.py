"""The client's half of gRPC over the simulated network: a channel and its calls.

Real messages pass, serialised by the product's own code; what a caller sees of a channel, a call
and its end is as gRPC gives it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from tests.simulate.kernel import kernel
from tests.simulate.network import Network, Pipe
from tests.simulate.threads import Thread, Waiters
from tests.support.wire_fixtures import Metadata, RpcFailure

FIRST_BACKOFF, LONGEST_BACKOFF = 0.1, 1.0
"""As grpc_comm/transport.py asks for."""

WINDOW = 65_536
"""Bytes of a call that are under way or unread at most, in each direction."""


class Call:
    """A call, as gRPC shows it to its caller: its way to the target, what came back, and how it
    ended.

    peer: the target's half of it, once it is there
    unread: bytes that the target has not read yet
    """

    peer: Any = None

    def __init__(self, channel: Channel, method: str, metadata: Metadata | None) -> None:
        self.channel, self.method, self.metadata = channel, method, tuple(metadata or ())
        self.pipe: Pipe | None = None
        self.inbox: deque[bytes] = deque()
        self.end: RpcFailure | None = None
        self.unread = self._taken = 0  # bytes; taken and not told of yet
        self._came, self._room = Waiters(), Waiters()
        self._waiting: list[tuple[int, Callable[[], None]]] = []  # said before there was a pipe

    def code(self) -> grpc.StatusCode | None:
        return None if self.end is None else self.end.code()

    def details(self) -> str:
        return "" if self.end is None else self.end.details()

    def trailing_metadata(self) -> Any:
        return () if self.end is None else self.end.trailing_metadata()

    def say(self, size: int, deliver: Callable[[], None]) -> None:
        """Send to the target, once there is a connection."""
        if self.pipe is None:
            self._waiting.append((size, deliver))
        else:
            self.pipe.send(0, size, deliver)

    def message(self, data: bytes) -> None:
        self.unread += len(data)
        self.say(len(data) + 14, lambda: self.peer.came(data))

    def no_more(self) -> None:
        self.say(9, lambda: self.peer.no_more())

    def begin(self, pipe: Pipe) -> None:
        """The connection is there."""
        self.pipe = pipe
        pipe.send(0, 100, lambda: pipe.ends[1].accept(pipe, self))
        waiting, self._waiting = self._waiting, []
        for size, deliver in waiting:
            pipe.send(0, size, deliver)

    def answered(self, data: bytes) -> None:
        if self.end is None:
            self.inbox.append(data)
            self._came.wake()

    def was_read(self, size: int) -> None:
        """The target has read so many bytes."""
        self.unread -= size
        self._room.wake()

    def finish(self, end: RpcFailure, *, forget: bool = False) -> None:
        """End the call. forget: what came and was not read"""
        if self.end is not None:
            return
        self.end = end
        if forget:
            self.inbox.clear()
        self.channel.calls.pop(self, None)
        self._came.wake()
        self._room.wake()

    def cancel(self) -> bool:
        if self.end is not None or kernel().over:
            return False
        self.leave(RpcFailure(grpc.StatusCode.CANCELLED, "Locally cancelled by application!"))
        return True

    def leave(self, end: RpcFailure) -> None:
        """End the call on this side, and tell the other one."""
        if self.pipe is not None:
            self.pipe.send(0, 13, lambda: self.peer and self.peer.reset())
        self.finish(end, forget=True)

    def limit(self, seconds: float | None) -> None:
        """End it after so many seconds."""
        late = RpcFailure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        if seconds is not None:
            kernel().after(seconds, lambda: None if self.end is not None else self.leave(late))

    def take(self) -> bytes | None:
        """Wait for the next answer; None at the end."""
        while not self.inbox:
            if self.end is not None:
                return None
            self._came.wait(None)
        data = self.inbox.popleft()
        self._taken += len(data)
        if self._taken > WINDOW // 2 and self.peer is not None and self.pipe is not None:
            size, self._taken = self._taken, 0
            self.pipe.send(0, 13, lambda: self.peer.was_read(size))
        return data

    def await_end(self) -> RpcFailure:
        while self.end is None:
            self._came.wait(None)
        return self.end

    def await_room(self) -> None:
        """Wait until more may be sent."""
        while self.unread > WINDOW and self.end is None:
            self._room.wait(None)


class Channel:
    """A channel: at most one connection, made when a call needs it."""

    def __init__(self, network: Network, address: str) -> None:
        fiber = kernel().current
        assert fiber is not None
        self.process, self.calls = fiber.process, dict[Call, None]()
        self._network, self._address = network, address
        self._pipe: Pipe | None = None
        self._pending: dict[Call, bool] = {}  # calls without a connection: whether they wait for it
        self._connecting, self._closed = False, False
        self._ready_at, self._backoff, self._last = 0.0, FIRST_BACKOFF, ""

    def unary_unary(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Any:
        return Unary(self, method, request_serializer, response_deserializer)

    def unary_stream(self, *_: Any, **__: Any) -> None: ...

    def stream_stream(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        **_: Any,
    ) -> Any:
        def begin(
            requests: Iterator[Any], timeout: float | None = None, metadata: Metadata | None = None
        ) -> Stream:
            call = Stream(self, method, metadata, request_serializer, response_deserializer)
            self.begin(call, wait=False)
            call.limit(timeout)
            return call.send(requests)

        return begin

    def begin(self, call: Call, *, wait: bool) -> None:
        """Begin a call. wait: for a connection, however often there is none"""
        if self._closed:
            raise ValueError("Cannot invoke RPC on closed channel!")
        self.calls[call] = None
        if self._pipe is not None:
            return call.begin(self._pipe)
        self._pending[call] = wait
        if not self._connecting and kernel().now >= self._ready_at:
            self._connect()
        elif not self._connecting:
            if wait:
                kernel().at(self._ready_at, self._connect)
            else:
                kernel().after(0.0, lambda: self._refuse(call))

    def close(self) -> None:
        self._closed = True
        for call in list(self.calls):
            call.leave(RpcFailure(grpc.StatusCode.CANCELLED, "Channel closed!"))
        if self._pipe is not None and not kernel().over:
            pipe, self._pipe = self._pipe, None
            pipe.send(0, 20, lambda: pipe.cut("the client closed"))

    def lost(self, pipe: Pipe, words: str) -> None:
        if pipe is not self._pipe and all(call.pipe is not pipe for call in self.calls):
            return
        if pipe is self._pipe:
            self._pipe = None
        forget = kernel().chance.random() < 0.5
        for call in list(self.calls):
            if call.pipe is pipe:
                call.finish(RpcFailure(grpc.StatusCode.UNAVAILABLE, words), forget=forget)

    def going_away(self) -> None:
        """The target takes no new calls on this connection."""
        self._pipe = None

    def _connect(self) -> None:
        if not self._connecting and self._pipe is None and not self._closed:
            self._connecting = True
            self._network.connect(self, self._address, self._connected)

    def _connected(self, pipe: Pipe | None, words: str) -> None:
        self._connecting = False
        if pipe is None:
            self._last = words
            self._ready_at = kernel().now + self._backoff * kernel().chance.uniform(0.8, 1.2)
            self._backoff = min(1.6 * self._backoff, LONGEST_BACKOFF)
            for call, waits in list(self._pending.items()):
                if not waits or call.end is not None:
                    self._refuse(call)
            if self._pending:
                kernel().at(self._ready_at, self._connect)
            return
        if self._closed:
            return pipe.cut("the client closed")
        self._pipe, self._backoff = pipe, FIRST_BACKOFF
        pending, self._pending = self._pending, {}
        for call in pending:
            if call.end is None:
                call.begin(pipe)

    def _refuse(self, call: Call) -> None:
        if self._pending.pop(call, None) is not None:
            words = f"failed to connect to all addresses; last error: UNKNOWN: {self._last}"
            call.finish(RpcFailure(grpc.StatusCode.UNAVAILABLE, words))


class Stream(Call):
    """A call with a stream of messages each way."""

    def __init__(
        self, channel: Channel, method: str, metadata: Metadata | None, write: Any, parse: Any
    ) -> None:
        super().__init__(channel, method, metadata)
        self._write, self._parse = write or bytes, parse or bytes

    def send(self, requests: Iterator[Any]) -> Stream:
        """Send these from now on."""
        Thread(target=self._consume, args=(requests,), name="grpc sender", daemon=True).start()
        return self

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        data = self.take()
        if data is not None:
            return self._parse(data)
        if self.code() is grpc.StatusCode.OK:
            raise StopIteration
        raise self.await_end()

    def _consume(self, requests: Iterator[Any]) -> None:
        for message in requests:
            self.await_room()
            if self.end is not None:
                return
            self.message(self._write(message))
        self.no_more()


class Pending(Call):
    """A call with one message each way. Its answer may not be there yet."""

    parse: Any = bytes

    def done(self) -> bool:
        return self.end is not None

    def result(self) -> Any:
        data, end = self.take(), self.await_end()
        if end.code() is not grpc.StatusCode.OK:
            raise end
        return self.parse(data)


class Unary:
    """Calls with one message each way."""

    def __init__(self, channel: Channel, method: str, write: Any, parse: Any) -> None:
        self._channel, self._method, self._write, self._parse = channel, method, write, parse

    def __call__(self, request: Any, **options: Any) -> Any:
        return self.future(request, **options).result()

    def future(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Metadata | None = None,
        wait_for_ready: bool | None = None,
    ) -> Pending:
        call = Pending(self._channel, self._method, metadata)
        call.parse = self._parse
        self._channel.begin(call, wait=bool(wait_for_ready))
        call.limit(timeout)
        call.message(self._write(request))
        call.no_more()
        return call
