"""Streams by hand: orders, resumed sessions, a target that drains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from grpc_comm.proto import verifier_pb2 as pb
from inference.engine.engine import Engine
from tests.support.hand_streams import Raw, draining, go
from tests.support.hostile import resume
from tests.support.wire_fixtures import (
    WAIT,
    Successor,
    background,
    chain_of,
    decode_to,
    eventually,
    opening,
    raw_stub,
    successor_engine,
)

CODES = grpc.StatusCode
WAITING = {"pace": pb.Decode.WAIT}


class Served(NamedTuple):
    """A target that counts upwards, and how to reach it by hand."""

    model: Successor
    engine: Engine
    stub: Any


@pytest.fixture
def served() -> Iterator[Served]:
    engine = successor_engine()
    assert isinstance(engine.model, Successor)
    with background(engine) as server, raw_stub(server.address) as stub:
        yield Served(engine.model, engine, stub)


def test_an_order_and_candidates_may_follow_open_at_once(served: Served) -> None:
    stream = Raw(served.stub, opening(), decode_to(9, **WAITING), chain_of([4, 5, 9]), go(2))
    opened = stream.answer().opened
    assert (opened.length, opened.tree_nodes, opened.candidates) == (3, 32, 1024)
    assert len(opened.resume_key) == 16
    answer = stream.answer().tokens
    assert (answer.position, list(answer.ids), answer.nodes) == (3, [4, 5, 6], 4)
    assert list(answer.proposers) == [0, 0, 255]
    assert (answer.known, answer.forwards, answer.lone) == (3, 1, 0)
    assert answer.share_microseconds <= answer.model_microseconds
    stream.cut()


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


@pytest.mark.parametrize("length", [4, 2])
def test_a_client_that_cannot_have_so_many_tokens_is_refused(served: Served, length: int) -> None:
    """Of a prompt of 3, and no output yet."""
    opened = Raw(served.stub, opening()).answer().opened
    refused = Raw(served.stub, resume(opened, length=length)).ending()
    refused.check(CODES.FAILED_PRECONDITION, "the client counts")
    eventually(lambda: served.engine.sessions == [])


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
