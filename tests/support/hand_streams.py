"""Streams to a target by hand, message by message, and what an observer counts of an engine."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import grpc

from grpc_comm.observability.metrics import Ending, Metrics
from grpc_comm.observability.model_observer import ModelObserver
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.server.server import BackgroundServer
from grpc_comm.transport import Address
from inference.engine.engine import Engine
from inference.engine.sessions.session import Session
from inference.order import Decode, Pace
from inference.proposer import Nodes
from inference.sampling import SamplingParams
from tests.support.hostile import bearer
from tests.support.wire_fixtures import WAIT, Successor, describe, opening, raw_stub, status


class Said(NamedTuple):
    """What came of a stream: the answers, and how it ended."""

    answers: list[pb.ServerMessage]
    code: grpc.StatusCode
    details: str

    @property
    def tokens(self) -> list[int]:
        return [token for answer in self.answers for token in answer.tokens.ids]

    def check(self, code: grpc.StatusCode, *shown: str) -> None:
        """It ended with this code, and words that show all of these."""
        assert self.code is code, self
        assert all(word in self.details for word in shown), self


class Raw:
    """A stream by hand: what is sent goes at once, answers come when they are asked for."""

    def __init__(self, stub: Any, *first: pb.ClientMessage, name: str = "") -> None:
        self._outbox: queue.SimpleQueue[pb.ClientMessage | None] = queue.SimpleQueue()
        self._call = stub.Session(
            iter(self._outbox.get, None), metadata=bearer(name) if name else None, timeout=WAIT
        )
        for message in first:
            self.send(message)

    def send(self, message: pb.ClientMessage) -> None:
        self._outbox.put(message)

    def answer(self) -> pb.ServerMessage:
        message: pb.ServerMessage = next(self._call)
        return message

    def spoken(self) -> pb.Tokens:
        """The next answer that has tokens."""
        while not (answer := self.answer()).tokens.ids:
            pass
        return answer.tokens

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

    def end(self) -> None:
        self._outbox.put(None)

    def cut(self) -> None:
        self._call.cancel()
        self.end()

    def said(self) -> Said:
        answers = list[pb.ServerMessage]()
        with suppress(grpc.RpcError):
            for answer in self._call:
                answers.append(answer)
                if answer.tokens.end not in (pb.Tokens.NOT, pb.Tokens.CREDIT, pb.Tokens.EVICTED):
                    self.end()
        self.end()
        return Said(answers, *status(self._call))

    def ending(self) -> Said:
        """How the target ends it; the client goes on listening."""
        try:
            return Said([], *status(self._call))
        finally:
            self.end()


def say(address: Address, messages: Sequence[pb.ClientMessage], name: str = "") -> Said:
    """Send all of this at once, as the caller of this name, and listen to the end."""
    with raw_stub(address) as stub:
        return Raw(stub, *messages, name=name).said()


@contextmanager
def under_way(
    address: Address, name: str = "", first: pb.ClientMessage | None = None
) -> Iterator[Raw]:
    with raw_stub(address) as stub:
        stream = Raw(stub, first or opening(), name=name)
        stream.answer()
        yield stream
        stream.end()


@contextmanager
def left_open(address: Address, name: str = "", **changes: Any) -> Iterator[pb.Opened]:
    """A silent stream whose session is open; on leaving, the call breaks, the session is held."""
    with raw_stub(address) as stub:
        stream = Raw(stub, opening(**changes), name=name)
        yield stream.answer().opened
        stream.cut()


def go(base: int) -> pb.ClientMessage:
    return pb.ClientMessage(go=pb.Go(base=base))


@contextmanager
def draining(server: BackgroundServer, grace: float = WAIT) -> Iterator[None]:
    stopping = threading.Thread(target=server.stop, args=(grace,))
    stopping.start()
    yield
    stopping.join(WAIT)
    assert not stopping.is_alive()


MODEL = "padded successor"
TENANT = "alice"
SESSION_ID = "0123456789abcdef"


class PaddedSuccessor(Successor):
    """A Successor that computes calls as 2 or 4 rows of 8 or 64 nodes."""

    capacity = 1_000

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return 2 if rows <= 2 else 4, 8 if nodes <= 8 else 64


def counted(metrics: Metrics, name: str, **labels: str) -> float:
    """The value of the sample that has exactly these labels."""
    value = metrics.registry.get_sample_value(name, labels)
    assert value is not None, f"no {name} {labels}"
    return value


def dropped(metrics: Metrics) -> dict[str, float]:
    """Candidates that were dropped, by reason."""
    name = "outrider_dropped_candidates_total"
    return {reason: counted(metrics, name, reason=reason) for reason in metrics.dropped}


class Service:
    """A served model and its observer, without a wire."""

    def __init__(self, metrics: Metrics | None = None, model: str = MODEL) -> None:
        self.metrics = metrics or Metrics()
        self.model = PaddedSuccessor(4)
        self.engine = Engine(self.model, sequence_length=500, max_tree_nodes=32, vocabulary=4_000)
        served = describe(self.engine)
        self.metrics.add_engine(
            self.engine,
            replace(served, server_version="1.2", model=model, device="emulated: by hand"),
        )
        self.observer = ModelObserver(self.metrics, model)
        self.engine.listeners.append(self.observer.count)

    def open(
        self, prompt: Sequence[int], session_id: str = SESSION_ID, tenant: str = TENANT
    ) -> Session:
        session, future = self.engine.open(prompt, SamplingParams(), tenant=tenant)
        self.observer.name_session(session, session_id)
        self.engine.finish(future)
        self.observer.record_opened(session, future.result())
        return session

    def ask(self, session: Session, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """A forward with these candidates. parents: 0 for the root, else which candidate"""
        engine, stream = self.engine, self.engine.join(session)
        back = [number - parent if parent else 0 for number, parent in enumerate(parents, 1)]
        chances = [0.9] * len(tokens)
        engine.append(session, stream, Nodes(session.length - 1, 1, back, tokens, chances))
        engine.decode(session, Decode(session.length + 40, pace=Pace.WAIT))
        engine.go(session, session.length - 1)
        forwards = session.spent.forwards
        while session.spent.forwards == forwards:
            engine.step()
        engine.acknowledge(session, session.length)
        engine.leave(session, stream)

    def close(self, session: Session) -> None:
        self.engine.close(session)
        self.observer.record_end(session, Ending.CLOSED)
