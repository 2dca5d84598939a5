"""A target that says what a test wants it to, right or wrong."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc.aio

from grpc_comm import translate
from grpc_comm.client.connection import connect
from grpc_comm.client.patience import Patience
from grpc_comm.client.remote_session import RemoteSession
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.proto import verifier_pb2_grpc
from grpc_comm.transport import Address
from inference.order import Decode
from inference.sampling import SamplingParams
from tests.support.wire_fixtures import WAIT, describe, successor_engine

PATIENCE = Patience(0.0)


class Rogue(verifier_pb2_grpc.TargetServicer):
    """A target that describes itself as it should and then says what a test wants it to."""

    def __init__(
        self, answers: Sequence[pb.ServerMessage], forever: Sequence[pb.ServerMessage] = ()
    ) -> None:
        """forever: what it says again and again after the answers"""
        self.answers, self.forever = answers, forever

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.Description:
        return translate.write_description(describe(successor_engine()), ["successor"])

    async def Session(self, requests: Any, context: Any) -> None:
        async for message in requests:
            if message.HasField("decode"):
                break
        for answer in self.answers:
            await context.write(answer)
        while self.forever:
            for answer in self.forever:
                await context.write(answer)
            await asyncio.sleep(0.02)
        await asyncio.sleep(WAIT)


@contextmanager
def rogue(
    answers: Sequence[pb.ServerMessage], forever: Sequence[pb.ServerMessage] = ()
) -> Iterator[Address]:
    bound, stop = threading.Event(), threading.Event()
    port = [0]

    async def serve() -> None:
        server = grpc.aio.server()
        verifier_pb2_grpc.add_TargetServicer_to_server(Rogue(answers, forever), server)
        port[0] = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        bound.set()
        await asyncio.to_thread(stop.wait, WAIT)
        await server.stop(None)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert bound.wait(WAIT)
    try:
        yield Address("127.0.0.1", port[0])
    finally:
        stop.set()
        thread.join(WAIT)


@contextmanager
def asked(
    answers: Sequence[pb.ServerMessage],
    forever: Sequence[pb.ServerMessage] = (),
    patience: Patience = PATIENCE,
) -> Iterator[RemoteSession]:
    """A session on [1, 2, 3] with such a target, which was asked for a text of 60 tokens."""
    with (
        rogue(answers, forever) as address,
        connect(str(address), patience=patience) as connection,
    ):
        session = connection.session()
        session.open([1, 2, 3], SamplingParams())
        session.decode(Decode(60))
        yield session


def tokens(position: int, *ids: int, **fields: Any) -> pb.ServerMessage:
    return pb.ServerMessage(tokens=pb.Tokens(position=position, ids=ids, **fields))


OPENED = pb.ServerMessage(opened=pb.Opened(session_id="s", length=3, tree_nodes=32))
