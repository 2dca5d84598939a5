"""A client's messages, and the time since its latest message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from prometheus_client import Counter

from grpc_comm.proto import verifier_pb2 as pb
from inference.errors import Gone

BREAK_SECONDS = 0.1
"""Maximum seconds between the end of a broken call's messages and gRPC's cancellation."""


class Inbox:
    """A client's messages, read one at a time. gRPC makes the sender wait while none is read."""

    def __init__(self, requests: AsyncIterator[pb.ClientMessage], received: Counter) -> None:
        """received: counts the received bytes"""
        self._requests, self._received = requests, received
        self._loop = asyncio.get_running_loop()
        self._waiting_since: float | None = None

    async def take(self) -> pb.ClientMessage | None:
        """Return the next message; None after the client's last message.

        Raises InvalidRequest for a message that CallGuard refuses.
        """
        self._waiting_since = self._loop.time()
        message = await anext(self._requests, None)
        self._waiting_since = None
        if message is not None:
            self._received.inc(message.ByteSize())
        return message

    async def silence(self, seconds: float) -> None:
        """Wait until no message has arrived for this many seconds, then raise Gone."""
        while True:
            since, now = self._waiting_since, self._loop.time()
            if since is not None and now - since >= seconds:
                raise Gone(f"no message for {seconds:g} s: the client counts as disconnected")
            await asyncio.sleep(seconds - (now - since) if since is not None else seconds)
