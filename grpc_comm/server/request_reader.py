"""Reads a client's messages for its stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from google.protobuf.message import DecodeError

from grpc_comm.observability.metrics import Metrics
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.server.parse_errors import UNREADABLE
from inference.errors import Gone, InvalidRequest


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
            raise InvalidRequest(UNREADABLE) from error
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
