"""A client's messages as its session reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from google.protobuf.message import DecodeError

from grpc_comm.observer import ServiceObserver
from grpc_comm.proto import verifier_pb2 as pb
from inference.errors import Gone, InvalidRequest, Mismatch


class Inbox:
    """Messages read one ahead, so that a Close is seen while the target is busy."""

    def __init__(
        self, requests: AsyncIterator[pb.ClientMessage], observer: ServiceObserver
    ) -> None:
        self._requests, self._observer = requests, observer
        self._next = self._read_ahead()

    async def take(
        self, seconds: float, superseded: asyncio.Event | None = None
    ) -> pb.ClientMessage | None:
        """The next message; None when the client has no more.

        Raises Gone after `seconds` of silence, Mismatch when another stream has the session, InvalidRequest for bytes that are
        not a message, and what reading it raised.
        """
        await self._wait(seconds, superseded)
        try:
            message = self._next.result()
        except DecodeError as error:
            raise InvalidRequest(
                "a message that cannot be read: the client does not speak this protocol"
            ) from error
        self._next = self._read_ahead()
        if message is not None:
            self._observer.bytes_up(message.ByteSize())
        return message

    def interruption(self) -> str | None:
        """Whether "close" or "halt" has come while something else is done. Halt is taken out, and heartbeats before them."""
        if not self._next.done() or self._next.cancelled() or self._next.exception() is not None:
            return None
        message = self._next.result()
        kind = message.WhichOneof("kind") if message is not None else None
        if kind in ("heartbeat", "halt"):
            self._next = self._read_ahead()
        return kind if kind in ("close", "halt") else None

    def close(self) -> None:
        self._next.cancel()

    async def _wait(self, seconds: float, superseded: asyncio.Event | None) -> None:
        fence = asyncio.create_task(superseded.wait()) if superseded is not None else None
        try:
            await asyncio.wait(
                {self._next, fence} if fence else {self._next},
                timeout=seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            if fence is not None:
                fence.cancel()
        if superseded is not None and superseded.is_set():
            raise Mismatch("another stream has resumed this session, or it was ended")
        if not self._next.done():
            raise Gone(f"nothing came for {seconds:g} s: the session is left")

    def _read_ahead(self) -> asyncio.Task[pb.ClientMessage | None]:
        async def read() -> pb.ClientMessage | None:
            return await anext(self._requests, None)

        task = asyncio.create_task(read())
        task.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # looked at here, raised by take()
        return task
