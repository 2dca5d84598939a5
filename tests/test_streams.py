"""Streams by hand: repeated rounds, fenced streams, sessions that were left, a target that drains or is full."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from grpc_comm.client import connect
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.server import BackgroundServer
from grpc_comm.transport import Address
from inference.engine import Engine
from inference.errors import Busy
from inference.sampling import SamplingParams
from tests.hostile import RawPeer, digest, eventually, resume
from tests.wire_fixtures import (
    WAIT,
    Successor,
    background,
    opening,
    raw_stub,
    round_,
    status,
    successor_engine,
)

CODES = grpc.StatusCode


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

    def ask(self, message: pb.ClientMessage) -> pb.ServerMessage:
        self.send(message)
        return self.answer()

    def cut(self) -> None:
        self._call.cancel()
        self._outbox.put(None)

    def ending(self) -> tuple[grpc.StatusCode, str]:
        """How the target ends it; the client goes on listening."""
        try:
            return status(self._call)
        finally:
            self._outbox.put(None)


class Served(NamedTuple):
    """A target that counts upwards, and how to reach it by hand."""

    model: Successor
    engine: Engine
    stub: Any
    address: Address


@contextmanager
def serving(engine: Engine, **options: Any) -> Iterator[Served]:
    assert isinstance(engine.model, Successor)
    with background(engine, **options) as server, raw_stub(server.address) as stub:
        yield Served(engine.model, engine, stub, server.address)
        engine.model.gate.set()


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(successor_engine()) as target:
        yield target


def next_round(text: Sequence[int], number: int) -> pb.ClientMessage:
    """One node on this text."""
    return pb.ClientMessage(
        round=pb.Round(number=number, base_length=len(text), digest=digest(text), tokens=text[-1:])
    )


def lone_round() -> pb.ClientMessage:
    """The first one, of the root alone: a busy target would cut a tree."""
    return round_([3], [])


def continuing(text: Sequence[int], tokens: int) -> pb.ClientMessage:
    return pb.ClientMessage(
        generate=pb.Continue(max_tokens=tokens, base_length=len(text), digest=digest(text))
    )


@pytest.mark.parametrize("broken", [False, True])
def test_a_repeated_round_returns_the_stored_verdict(served: Served, broken: bool) -> None:
    stream = Raw(served.stub, opening())
    opened = stream.answer().opened
    first = stream.ask(lone_round()).verdict
    forwards = len(served.model.calls)
    if broken:
        stream.cut()
        stream = Raw(served.stub, resume(opened))
        assert stream.answer().opened.length == 4
    assert stream.ask(lone_round()).verdict == first
    assert len(served.model.calls) == forwards
    assert stream.ask(next_round([1, 2, 3, 4], 1)).verdict.next_token == 5
    stream.cut()


def test_another_tree_under_a_rounds_number_is_not_that_round(served: Served) -> None:
    stream = Raw(served.stub, opening(), lone_round(), round_([3, 9]))
    assert [stream.answer().WhichOneof("kind") for _ in range(2)] == ["opened", "verdict"]
    code, words = stream.ending()
    assert (code, "round 0 came when round 1 was due" in words) == (CODES.FAILED_PRECONDITION, True)


REFUSED: dict[str, tuple[dict[str, Any], grpc.StatusCode]] = {
    "epoch 0": ({"epoch": 0}, CODES.FAILED_PRECONDITION),
    "the epoch before": ({"epoch": 1}, CODES.FAILED_PRECONDITION),
    "the epoch of the stream that is there": ({"epoch": 2}, CODES.FAILED_PRECONDITION),
    "another key": ({"epoch": 3, "resume_key": b"0" * 16}, CODES.NOT_FOUND),
    "no key": ({"epoch": 3, "resume_key": b""}, CODES.NOT_FOUND),
    "another id": ({"epoch": 3, "session_id": "another-session"}, CODES.NOT_FOUND),
    "another protocol": ({"epoch": 3, "protocol_version": 1}, CODES.FAILED_PRECONDITION),
}


@pytest.mark.parametrize("name", REFUSED)
def test_who_may_not_resume_is_refused_and_the_session_goes_on(served: Served, name: str) -> None:
    changes, code = REFUSED[name]
    first = Raw(served.stub, opening())
    opened = first.answer().opened
    first.cut()
    stream = Raw(served.stub, resume(opened, epoch=2))
    stream.answer()
    assert Raw(served.stub, resume(opened, **changes)).ending()[0] is code
    assert stream.ask(lone_round()).verdict.next_token == 4
    stream.cut()


def test_the_older_stream_is_fenced(served: Served) -> None:
    older = Raw(served.stub, opening())
    newer = Raw(served.stub, resume(older.answer().opened))
    newer.answer()
    code, words = older.ending()
    assert (code, "another stream has resumed" in words) == (CODES.FAILED_PRECONDITION, True)
    assert newer.ask(lone_round()).verdict.next_token == 4
    newer.cut()


def test_what_an_older_stream_generates_ends_when_a_newer_one_comes(served: Served) -> None:
    older = Raw(served.stub, opening(), continuing([1, 2, 3], 40_000))
    opened = older.answer().opened
    assert older.answer().tokens.ids == [4]
    newer = Raw(served.stub, resume(opened))
    assert newer.answer().opened.length > 3
    assert newer.ask(lone_round()).verdict.next_token == 4
    assert len(served.model.calls) < 40_000
    newer.cut()


def test_of_two_streams_that_wait_for_the_same_forward_the_newest_gets_the_session(
    served: Served,
) -> None:
    first = Raw(served.stub, opening())
    opened = first.answer().opened
    served.model.entered.clear()
    served.model.gate.clear()
    first.send(continuing([1, 2, 3], 40_000))
    assert served.model.entered.wait(WAIT)
    second = Raw(served.stub, resume(opened, epoch=1), lone_round())
    second.answer()
    third = Raw(served.stub, resume(opened, epoch=2), lone_round())
    third.answer()
    served.model.gate.set()
    assert second.ending()[0] is CODES.FAILED_PRECONDITION
    assert third.answer().verdict.next_token == 4
    third.cut()


def test_a_base_length_below_the_targets_takes_back_what_lies_beyond(served: Served) -> None:
    stream = Raw(served.stub, opening(), continuing([1, 2, 3], 6))
    stream.answer()
    assert [stream.answer().tokens.ids[0] for _ in range(6)] == [4, 5, 6, 7, 8, 9]
    assert stream.ask(continuing([1, 2, 3, 4, 5], 1)).tokens.ids == [6]
    assert stream.ask(lone_round()).verdict.next_token == 4
    assert served.engine.sessions[0].tokens == [1, 2, 3, 4]
    stream.cut()


SETTLED: dict[str, tuple[list[int], str]] = {
    "other tokens": ([1, 2, 9], "are not those of the target"),
    "other tokens further back": ([1, 9, 3, 4], "are not those of the target"),
    "more than there are": ([1, 2, 3, 4, 5], "counts 5 committed tokens, the target 4"),
    "less than the prompt": ([1, 2], "of which 3 were its prompt"),
}


@pytest.mark.parametrize("name", SETTLED)
def test_a_client_that_does_not_have_the_targets_tokens_is_refused(
    served: Served, name: str
) -> None:
    text, words = SETTLED[name]
    stream = Raw(served.stub, opening(), lone_round())
    opened = stream.answer().opened
    stream.answer()
    stream.cut()
    stream = Raw(served.stub, resume(opened), next_round(text, 1))
    stream.answer()
    code, said = stream.ending()
    assert (code, words in said) == (CODES.FAILED_PRECONDITION, True)
    eventually(lambda: served.engine.sessions == [])


def test_a_stream_that_says_nothing_for_a_lease_is_left_and_the_session_waits_for_another() -> None:
    with serving(successor_engine(), lease_seconds=0.5) as served:
        silent = Raw(served.stub, opening())
        opened = silent.answer().opened
        code, words = silent.ending()
        assert (code, "nothing came for" in words) == (CODES.NOT_FOUND, True)
        stream = Raw(served.stub, resume(opened))
        assert stream.answer().opened.length == 3
        stream.cut()
        eventually(lambda: served.engine.sessions == [])
        assert Raw(served.stub, resume(opened, epoch=2)).ending()[0] is CODES.NOT_FOUND


@contextmanager
def draining(server: BackgroundServer, grace: float = WAIT) -> Iterator[None]:
    stopping = threading.Thread(target=server.stop, args=(grace,))
    stopping.start()
    yield
    stopping.join(WAIT)
    assert not stopping.is_alive()


def test_a_draining_target_says_so_answers_what_is_under_way_and_asks_to_leave() -> None:
    engine = successor_engine()
    with (
        background(engine) as server,
        raw_stub(server.address) as stub,
        grpc.insecure_channel(str(server.address)) as channel,
    ):
        assert isinstance(engine.model, Successor)
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service=""), timeout=WAIT
        )
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        stream, late = Raw(stub, opening()), Raw(stub)
        stream.answer()
        engine.model.entered.clear()
        engine.model.gate.clear()
        stream.send(lone_round())
        assert engine.model.entered.wait(WAIT)
        with draining(server):
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            watch.cancel()
            assert stream.answer().go_away.reason == "the target ends"
            late.send(opening())
            code, words = late.ending()
            assert (code, "about to end" in words) == (CODES.UNAVAILABLE, True)
            engine.model.gate.set()
            assert stream.answer().verdict.next_token == 4
            stream.send(pb.ClientMessage(close=pb.Close()))
            assert stream.ending()[0] is CODES.OK


def test_a_client_that_does_not_read_does_not_keep_a_draining_target() -> None:
    engine = successor_engine()
    with background(engine, lease_seconds=3600.0) as server:
        peer = RawPeer(server.address)
        peer.greet(window=400)
        peer.call()
        for message in (opening(), continuing([1, 2, 3], 400)):
            peer.send(message.SerializeToString())
        eventually(lambda: len(engine.sessions) == 1 and engine.sessions[0].length == 403)
        with draining(server, grace=0.1):
            pass
        peer.close()


def test_a_full_target_names_the_time_after_which_to_ask_again() -> None:
    with serving(successor_engine(rows=1, waiting=0)) as served:
        held = Raw(served.stub, opening())
        held.answer()
        refused = served.stub.Session(iter([opening()]), timeout=WAIT)
        assert status(refused)[0] is CODES.RESOURCE_EXHAUSTED
        assert dict(refused.trailing_metadata()) == {"retry-after-ms": "1000"}
        with connect(str(served.address)) as hasty, pytest.raises(Busy, match="full"):
            hasty.verifier().open([1, 2, 3], SamplingParams()).result(WAIT)
        held.cut()
