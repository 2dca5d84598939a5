"""A stream to a target by hand, message by message."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.server.server import BackgroundServer
from tests.support.wire_fixtures import WAIT, status


class Raw:
    """A stream by hand: what is sent goes at once, answers come when they are asked for."""

    def __init__(self, stub: Any, *first: pb.ClientMessage) -> None:
        self._outbox: queue.SimpleQueue[pb.ClientMessage | None] = queue.SimpleQueue()
        self._call = stub.Session(iter(self._outbox.get, None), timeout=WAIT)
        for message in first:
            self.send(message)

    def send(self, message: pb.ClientMessage) -> None:
        self._outbox.put(message)

    def answer(self) -> pb.ServerMessage:
        message: pb.ServerMessage = next(self._call)
        return message

    def tokens(self, count: int) -> list[int]:
        """The next ones; the first of them follows what came before."""
        came: list[int] = []
        while len(came) < count:
            came += self.answer().tokens.ids
        return came

    def until(self, end: int) -> list[int]:
        """Tokens up to the message that states this end."""
        came: list[int] = []
        while True:
            answer = self.answer().tokens
            came += answer.ids
            if answer.end == end:
                return came

    def cut(self) -> None:
        self._call.cancel()
        self._outbox.put(None)

    def ending(self) -> tuple[grpc.StatusCode, str]:
        """How the target ends it; the client goes on listening."""
        try:
            return status(self._call)
        finally:
            self._outbox.put(None)


def go(base: int) -> pb.ClientMessage:
    return pb.ClientMessage(go=pb.Go(base=base))


def ack(length: int) -> pb.ClientMessage:
    return pb.ClientMessage(ack=pb.Ack(length=length))


@contextmanager
def draining(server: BackgroundServer, grace: float = WAIT) -> Iterator[None]:
    stopping = threading.Thread(target=server.stop, args=(grace,))
    stopping.start()
    yield
    stopping.join(WAIT)
    assert not stopping.is_alive()
