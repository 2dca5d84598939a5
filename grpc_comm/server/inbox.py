"""A client's messages, and how long it has been silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from prometheus_client import Counter

from grpc_comm.proto import verifier_pb2 as pb
from inference.errors import Gone

BREAK_SECONDS = 0.1
"""Seconds that may pass between the end of a broken call's messages and gRPC's cancellation."""


class Inbox:
    """A client's messages, one at a time. While none is read, gRPC makes the sender wait."""

    def __init__(self, requests: AsyncIterator[pb.ClientMessage], received: Counter) -> None:
        """received: counts the messages' bytes"""
        self._requests, self._received = requests, received
        self._loop = asyncio.get_running_loop()
        self._waiting_since: float | None = None

    async def take(self) -> pb.ClientMessage | None:
        """Return the next message; None when the client has no more.

        Raises InvalidRequest for a message that the guard of calls refuses.
        """
        self._waiting_since = self._loop.time()
        message = await anext(self._requests, None)
        self._waiting_since = None
        if message is not None:
            self._received.inc(message.ByteSize())
        return message

    async def silence(self, seconds: float) -> None:
        """Wait until nothing has arrived for so many seconds, then raise Gone."""
        while True:
            since, now = self._waiting_since, self._loop.time()
            if since is not None and now - since >= seconds:
                raise Gone(f"no message for {seconds:g} s: the client counts as disconnected")
            await asyncio.sleep(seconds - (now - since) if since is not None else seconds)
