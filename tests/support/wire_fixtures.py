"""A target whose answers can be computed by hand, and servers around it. Imports no torch, so that
a child process starts quickly.

Run as a program it serves that target until a signal, and prints its port.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import grpc

from grpc_comm.client.connection import Connection, connect
from grpc_comm.client.remote_session import RemoteSession
from grpc_comm.client.replicas import rendezvous
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.proto import verifier_pb2_grpc
from grpc_comm.security import SecurityOptions
from grpc_comm.server.server import BackgroundServer, Target, serve
from grpc_comm.translate import PROTOCOL_VERSION, Description
from grpc_comm.transport import Address
from inference.backends import Chosen, Segment
from inference.engine.engine import Engine
from inference.loop.decode import TargetSession
from inference.order import Decode, End, Progress
from inference.proposer import NOBODY, Nodes
from inference.sampling import SamplingParams
from tests.support.exact import HandModel, chain
from tests.support.repository import ROOT

LOOPBACK = Address("127.0.0.1", 0)
VOCABULARY = 4000
FAULTY = 3999
"""A token that makes the model fail, and that it never chooses."""

WAIT = 20.0
"""Seconds after which a test fails instead of hanging."""


class Successor(HandModel):
    """A Model that chooses token + 1 after every token; `calls` holds the rows of each forward,
    `gate` holds it up.
    """

    capacity, masks = 60_000, False

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.calls: list[int] = []
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        self.calls += [segment.row for segment in segments]
        self.entered.set()
        assert self.gate.wait(WAIT)
        if any(FAULTY in segment.tokens for segment in segments):
            raise RuntimeError("a private reason")
        return [Chosen((segment.tokens[segment.pick] + 1) % FAULTY) for segment in segments]

    def copy_row(self, source: int, target: int, slots: int) -> None:
        """There are no keys."""


def successor_engine(rows: int = 2, sequence_length: int = 50_000, waiting: int = 64) -> Engine:
    return Engine(
        Successor(rows),
        sequence_length=sequence_length,
        max_tree_nodes=32,
        vocabulary=VOCABULARY,
        waiting=waiting,
    )


def describe(engine: Engine) -> Description:
    return Description(
        server_version="0",
        model="successor",
        model_fingerprint="m0",
        tokenizer_fingerprint="t0",
        vocabulary=engine.vocabulary,
        sequence_length=engine.sequence_length,
        max_tree_nodes=engine.max_tree_nodes,
        rows=engine.model.rows,
        dtype="int32",
        device="none",
        stop_ids=frozenset({7, 3}),
        rules=engine.model.masks,
    )


def background(engine: Engine, address: Address = LOOPBACK, **options: Any) -> BackgroundServer:
    """A server of this engine, on a free port of this machine."""
    return BackgroundServer(Target(engine, describe(engine), address, **options))


@contextmanager
def connected(engine: Engine, **options: Any) -> Iterator[Connection]:
    """A connection to a server of this engine."""
    with background(engine, **options) as server, connect(str(server.address)) as connection:
        yield connection


@contextmanager
def raw_stub(address: Address) -> Iterator[Any]:
    """What a client of another make would use."""
    with grpc.insecure_channel(str(address)) as channel:
        yield verifier_pb2_grpc.TargetStub(channel)


def opening(**changes: Any) -> pb.ClientMessage:
    fields: dict[str, Any] = {
        "session_id": uuid.uuid4().hex,
        "protocol_version": PROTOCOL_VERSION,
        "tokenizer_fingerprint": "t0",
        "model_fingerprint": "m0",
        "prompt": [1, 2, 3],
        "top_p": 1.0,
    }
    return pb.ClientMessage(open=pb.Open(**(fields | changes)))


def decode_to(end: int, **changes: Any) -> pb.ClientMessage:
    """Let the target go on up to this length."""
    return pb.ClientMessage(decode=pb.Decode(end=end, **changes))


def chain_of(
    tokens: Sequence[int] = (4, 5), base: int = 2, first: int = 0, **changes: Any
) -> pb.ClientMessage:
    """Candidates below the prompt [1, 2, 3], one below the other."""
    fields: dict[str, Any] = {
        "first": first,
        "base": base,
        "parents": [min(index, 1) for index in range(len(tokens))],
        "tokens": tokens,
        "chances": bytes(len(tokens)),
    }
    return pb.ClientMessage(nodes=pb.Nodes(**(fields | changes)))


def candidates(session: TargetSession, base: int, tokens: Sequence[int]) -> Nodes:
    """The same for a client of ours."""
    return chain(base, tokens, first=session.next_number)


def opened(connection: Connection, key: str = "") -> RemoteSession:
    """On [1, 2, 3], and the target knows it."""
    session = connection.session(key)
    session.open([1, 2, 3], SamplingParams())
    eventually(lambda: session.is_open)
    return session


def in_turn(*servers: BackgroundServer) -> str:
    """A key whose sessions try the servers in this order."""
    names = [str(server.address) for server in servers]
    return next(key for key in map(str, count()) if rendezvous(key, names) == names)


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until it does."""
    deadline = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.01)


def news(session: TargetSession) -> Progress:
    """The next tokens, or the end."""
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        progress = session.receive(0.1)
        if progress is not None and (progress.tokens or progress.end is not End.NOT):
            return progress
    raise AssertionError("nothing came")


def rest(session: TargetSession) -> list[int]:
    """What comes until the text ends."""
    tokens: list[int] = []
    end = End.NOT
    while end is End.NOT:
        progress = news(session)
        tokens += progress.tokens
        end = progress.end
    return tokens


def until_it_fails(session: RemoteSession) -> None:
    """Raises why. It must fail within a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        session.receive(WAIT)
    raise AssertionError("the session went on for a minute")


def assert_serves(session: RemoteSession, length: int = 3) -> None:
    """The session, which has so many tokens, goes on as if nothing had happened."""
    session.decode(Decode(length + 2))
    assert rest(session) == [length + 1, length + 2]


def status(call: Any) -> tuple[grpc.StatusCode, str]:
    """How a stream ends."""
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return call.code(), call.details() or ""


def progress(position: int, *tokens: int, **changes: Any) -> Progress:
    fields: dict[str, Any] = {"proposers": (NOBODY,) * len(tokens), "room": 9, "nodes": 5}
    fields |= {"forwards": 2, "lone": 1, "queue_seconds": 0.5, "model_seconds": 1.0}
    fields |= {"share_seconds": 0.25}
    return Progress(position=position, tokens=tokens, **(fields | changes))


def resident(pid: int) -> int:
    """Bytes that a process has in memory."""
    command = ["ps", "-o", "rss=", "-p", str(pid)]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(said.stdout) * 1024


@contextmanager
def process(*files: Path) -> Iterator[tuple[subprocess.Popen[str], Address]]:
    """That target in a process of its own, in the foreground. files: of keys, a certificate, and
    its key
    """
    command = [sys.executable, "-m", "tests.support.wire_fixtures", *map(str, files)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as started:
        try:
            assert started.stdout is not None
            yield started, LOOPBACK._replace(port=int(started.stdout.readline()))
        finally:
            started.kill()


def free_port() -> int:
    """A port of this machine where nobody listens."""
    with socket.create_server((LOOPBACK.host, 0)) as unused:
        return int(unused.getsockname()[1])


Metadata = tuple[tuple[str, str], ...]


class RpcFailure(grpc.RpcError):
    """The status of a call that failed, with its trailing metadata."""

    def __init__(self, code: grpc.StatusCode, details: str, trailing: Metadata = ()) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code, self._details, self._trailing = code, details, trailing

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return self._trailing


if __name__ == "__main__":
    served = successor_engine()
    keys, certificate, key = [*map(Path, sys.argv[1:]), None, None, None][:3]
    security = SecurityOptions(keys_file=keys, tls_cert=certificate, tls_key=key)
    target = Target(served, describe(served), LOOPBACK, security)
    serve(target, lambda bound: print(bound.port, flush=True))
