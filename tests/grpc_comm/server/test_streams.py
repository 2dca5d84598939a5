"""Streams by hand: orders, credit, resumed sessions, slow readers, a target that drains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from grpc_comm.client.connection import connect
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.server import sender
from grpc_comm.transport import Address
from inference.engine.engine import Engine
from inference.errors import Busy
from inference.order import MIN_CREDIT
from inference.sampling import SamplingParams
from tests.support.hand_streams import Raw, ack, draining, go
from tests.support.hostile import RawPeer, resume
from tests.support.wire_fixtures import (
    WAIT,
    Successor,
    background,
    chain_of,
    decode_to,
    eventually,
    opening,
    raw_stub,
    status,
    successor_engine,
)

CODES = grpc.StatusCode
WAITING = {"pace": pb.Decode.WAIT}


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


def test_opened_states_what_the_session_may_do(served: Served) -> None:
    stream = Raw(served.stub, opening())
    opened = stream.answer().opened
    assert (opened.length, opened.tree_nodes, opened.candidates) == (3, 32, 1024)
    assert len(opened.resume_key) == 16
    stream.cut()


def test_an_order_and_candidates_may_follow_open_at_once(served: Served) -> None:
    stream = Raw(served.stub, opening(), decode_to(9, **WAITING), chain_of([4, 5, 9]), go(2))
    assert stream.answer().HasField("opened")
    answer = stream.answer().tokens
    assert (answer.position, list(answer.ids), answer.nodes) == (3, [4, 5, 6], 4)
    assert list(answer.proposers) == [0, 0, 255]
    assert (answer.known, answer.forwards, answer.lone) == (3, 1, 0)
    assert answer.share_microseconds <= answer.model_microseconds
    stream.cut()


def test_a_target_without_news_says_that_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """In line, while nothing was ordered, and when the text has ended."""
    monkeypatch.setattr(sender, "HEARTBEAT_SECONDS", 0.05)
    with serving(successor_engine(rows=1)) as served:
        first = Raw(served.stub, opening())
        first.answer()
        in_line = Raw(served.stub, opening())
        for stream in (first, in_line):
            for _ in range(3):
                said = stream.answer().tokens
                assert (said.position, list(said.ids), said.end) == (3, [], pb.Tokens.NOT)
        first.send(decode_to(4))
        assert first.until(pb.Tokens.MAX_TOKENS) == [4]
        for _ in range(3):
            assert first.answer().tokens.position == 4
        first.cut()
        in_line.cut()


REFUSED: dict[str, tuple[dict[str, Any], grpc.StatusCode]] = {
    "epoch 0": ({"epoch": 0}, CODES.FAILED_PRECONDITION),
    "the epoch before": ({"epoch": 1}, CODES.FAILED_PRECONDITION),
    "the epoch of the stream that is there": ({"epoch": 2}, CODES.FAILED_PRECONDITION),
    "another key": ({"epoch": 3, "resume_key": b"0" * 16}, CODES.NOT_FOUND),
    "no key": ({"epoch": 3, "resume_key": b""}, CODES.NOT_FOUND),
    "a long key": ({"epoch": 3, "resume_key": b"x" * 100_000}, CODES.NOT_FOUND),
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
    Raw(served.stub, resume(opened, **changes)).ending().check(code)
    stream.send(decode_to(4))
    assert stream.tokens(1) == [4]
    stream.cut()


@pytest.mark.parametrize("name", ["more than there are", "less than the prompt"])
def test_a_client_that_cannot_have_so_many_tokens_is_refused(served: Served, name: str) -> None:
    stream = Raw(served.stub, opening())
    opened = stream.answer().opened
    length = 4 if name == "more than there are" else 2
    refused = Raw(served.stub, resume(opened, length=length)).ending()
    refused.check(CODES.FAILED_PRECONDITION, "the client counts")
    eventually(lambda: served.engine.sessions == [])


def test_the_length_of_a_resume_counts_as_acknowledged(served: Served) -> None:
    older = Raw(served.stub, opening(), decode_to(900, credit=20))
    opened = older.answer().opened
    older.until(pb.Tokens.CREDIT)
    newer = Raw(served.stub, resume(opened, length=23))
    newer.answer()
    assert newer.tokens(20) == list(range(24, 44))
    for stream in (older, newer):
        stream.cut()


def test_a_session_whose_stream_broke_stands_still(served: Served) -> None:
    stream = Raw(served.stub, opening(), decode_to(40_000))
    opened = stream.answer().opened
    stream.tokens(3)
    stream.cut()
    session = served.engine.sessions[0]
    eventually(lambda: session.detached)
    forwards = len(served.model.calls)
    other = Raw(served.stub, opening(), decode_to(10))
    other.until(pb.Tokens.MAX_TOKENS)
    assert len(served.model.calls) <= forwards + 9
    resumed = Raw(served.stub, resume(opened, length=5))
    resumed.answer()
    assert resumed.tokens(3)[0] == 6
    for stream in (other, resumed):
        stream.cut()


def test_a_slow_reader_gets_fewer_and_longer_messages(served: Served) -> None:
    """Of a client that reads nothing, flow control takes some messages; the rest come as one."""
    peer = RawPeer(served.address)
    peer.greet(window=400)
    peer.call()
    for message in (opening(), decode_to(2_000)):
        peer.send(message.SerializeToString())
    eventually(lambda: len(served.engine.sessions) == 1)
    session = served.engine.sessions[0]

    def has_reached(length: int) -> bool:
        return session.length >= length

    eventually(partial(has_reached, 3 + MIN_CREDIT))
    for length in range(60, 2_000, 60):  # it acknowledges what it does not read
        eventually(partial(has_reached, length))
        peer.send(ack(length).SerializeToString())
    eventually(lambda: session.length == 2_000)
    peer.window(2**20)
    sizes = [len(message.tokens.ids) for message in peer.messages(1_997)]
    assert sum(sizes) == 1_997
    assert max(sizes) > 500
    peer.close()


def test_a_draining_target_tells_what_the_forward_in_hand_brings_and_ends_the_session() -> None:
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
        stream, idle, late = Raw(stub, opening()), Raw(stub, opening()), Raw(stub)
        stream.answer()
        idle.answer()
        engine.model.entered.clear()
        engine.model.gate.clear()
        stream.send(decode_to(40_000))
        assert engine.model.entered.wait(WAIT)
        with draining(server):
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            watch.cancel()
            for one in (stream, idle):
                answer = one.answer()
                while not answer.HasField("go_away"):
                    answer = one.answer()
                assert answer.go_away.reason == "the target is shutting down"
            assert idle.until(pb.Tokens.DRAINED) == []
            late.send(opening())
            late.ending().check(CODES.UNAVAILABLE, "shutting down")
            engine.model.gate.set()
            assert stream.until(pb.Tokens.DRAINED) == [4]
            for one in (stream, idle):
                one.ending().check(CODES.OK)


def test_a_full_target_names_the_time_after_which_to_ask_again() -> None:
    with serving(successor_engine(rows=1, waiting=0)) as served:
        held = Raw(served.stub, opening())
        held.answer()
        refused = served.stub.Session(iter([opening()]), timeout=WAIT)
        assert status(refused)[0] is CODES.RESOURCE_EXHAUSTED
        assert dict(refused.trailing_metadata()) == {"retry-after-ms": "1000"}
        with connect(str(served.address)) as hasty:
            session = hasty.session()
            session.open([1, 2, 3], SamplingParams())
            with pytest.raises(Busy, match="full"):
                session.receive(WAIT)
        held.cut()
