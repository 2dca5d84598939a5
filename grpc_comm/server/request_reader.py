"""A client's messages as its stream reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from google.protobuf.message import DecodeError

from grpc_comm.observer import ServiceObserver
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.server.parse_errors import UNREADABLE
from inference.errors import Gone, InvalidRequest


class Inbox:
    """Messages, one at a time: what is not read here, gRPC holds back at its sender."""

    def __init__(
        self, requests: AsyncIterator[pb.ClientMessage], observer: ServiceObserver
    ) -> None:
        self._requests, self._observer = requests, observer
        self._loop = asyncio.get_running_loop()
        self._waiting_since: float | None = None

    async def first(self, seconds: float) -> pb.ClientMessage | None:
        """As take(); raises Gone when none has come after so many seconds."""
        taking = asyncio.ensure_future(self.take())
        await asyncio.wait({taking}, timeout=seconds)
        if not taking.done():
            taking.cancel()
            raise _silence(seconds)
        return taking.result()

    async def take(self) -> pb.ClientMessage | None:
        """The next message; None when the client has no more.

        Raises InvalidRequest for bytes that are not a message, and what reading it raised.
        """
        self._waiting_since = self._loop.time()
        try:
            message = await anext(self._requests, None)
        except DecodeError as error:
            raise InvalidRequest(UNREADABLE) from error
        self._waiting_since = None
        if message is not None:
            self._observer.bytes_up(message.ByteSize())
        return message

    async def silence(self, seconds: float) -> None:
        """Raises Gone once nothing has come for so long."""
        while True:
            since, now = self._waiting_since, self._loop.time()
            if since is not None and now - since >= seconds:
                raise _silence(seconds)
            await asyncio.sleep(seconds - (now - since) if since is not None else seconds)


def _silence(seconds: float) -> Gone:
    return Gone(f"nothing came for {seconds:g} s: the session is left")
