"""Streams by hand, and streams that a host carries, whose target checks keys itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from grpc_comm import keys
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.proto import verifier_pb2_grpc
from grpc_comm.security import SecurityOptions
from grpc_comm.server.hosted import HostedTarget, await_routes
from grpc_comm.server.server import Target
from grpc_comm.transport import Address
from inference.engine.engine import Engine
from tests.support.hand_streams import Raw, draining, go
from tests.support.hostile import resume
from tests.support.refusals import assert_refused
from tests.support.wire_fixtures import (
    LOOPBACK,
    WAIT,
    Successor,
    background,
    chain_of,
    decode_to,
    describe,
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


class Carried:
    """A call as a host has it: what the caller sent along, and how the call ended."""

    def __init__(self, token: str = "") -> None:
        self.sent = [("authorization", f"Bearer {token}")] if token else []
        self.code: grpc.StatusCode | None = None
        self.details, self.trailing = "", list[tuple[str, str]]()

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return self.sent

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details

    def set_trailing_metadata(self, trailing_metadata: list[tuple[str, str]]) -> None:
        self.trailing = trailing_metadata


async def said(*messages: pb.ClientMessage) -> AsyncIterator[pb.ClientMessage]:
    """These messages, from a client that goes on listening."""
    for message in messages:
        yield message
    await asyncio.sleep(WAIT)


def hosted(**options: Any) -> HostedTarget:
    engine = successor_engine(rows=1, waiting=0)
    return HostedTarget(Target(engine, describe(engine), LOOPBACK, **options))


async def answers(target: HostedTarget, call: Carried, *messages: pb.ClientMessage) -> list[int]:
    """All tokens that the target sends before it ends the text or the call."""
    came = list[int]()
    async for message in target.session(said(*messages), call):
        came += message.tokens.ids
        if message.tokens.end:
            break
    return came


def carried(target: HostedTarget, *calls: Any) -> list[Any]:
    async def run() -> list[Any]:
        target.begin()
        try:
            return [await asyncio.wait_for(call, WAIT) for call in calls]
        finally:
            await target.end()

    return asyncio.run(run())


@pytest.fixture
def keyed(tmp_path: Path) -> tuple[SecurityOptions, str]:
    file = tmp_path / "keys.json"
    token = keys.make_key(file, "alice")
    return SecurityOptions(keys_file=file), token


def test_who_has_no_key_gets_nothing_from_a_target_behind_an_ingress(
    keyed: tuple[SecurityOptions, str],
) -> None:
    target, calls = hosted(security=keyed[0]), [Carried(token) for token in ("", "wrong", keyed[1])]
    said = carried(
        target,
        *(answers(target, call, opening(), decode_to(6)) for call in calls),
        *(target.describe(pb.DescribeRequest(), call) for call in calls),
    )
    assert said[:5] == [[], [], [4, 5, 6], pb.Description(), pb.Description()]
    assert said[5].model == "successor"
    assert {call.code for call in calls[:2]} == {grpc.StatusCode.UNAUTHENTICATED}


def test_a_key_that_is_taken_out_ends_its_stream(keyed: tuple[SecurityOptions, str]) -> None:
    security, token = keyed
    target, call = hosted(security=security), Carried(token)

    async def until_refused() -> None:
        async for message in target.session(said(opening()), call):
            if message.WhichOneof("kind") == "opened":
                assert security.keys_file is not None
                security.keys_file.write_text('{"keys": []}')

    carried(target, until_refused())
    assert call.code is grpc.StatusCode.UNAUTHENTICATED


def test_a_full_target_says_when_to_come_again() -> None:
    target, second = hosted(), Carried()

    async def beside() -> None:
        async for _ in target.session(said(opening()), Carried()):
            await answers(target, second, opening())
            break

    carried(target, beside())
    assert second.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert dict(second.trailing) == {"retry-after-ms": "1000"}


def test_a_call_that_the_host_drops_leaves_its_session_to_be_resumed() -> None:
    target = hosted()

    async def dropped_and_resumed() -> list[int]:
        stream = target.session(said(opening()), Carried())
        opened = (await anext(stream)).opened
        while not opened.resume_key:
            opened = (await anext(stream)).opened
        await stream.aclose()  # type: ignore[attr-defined]  # it is a generator
        return await answers(target, Carried(), resume(opened), decode_to(6))

    assert carried(target, dropped_and_resumed()) == [[4, 5, 6]]


def test_tls_behind_an_ingress_is_refused_with_what_to_do_instead() -> None:
    tls = SecurityOptions(tls_cert=Path("a"), tls_key=Path("b"))
    assert_refused(lambda: hosted(security=tls), ["--tls_cert", "in front of the ingress"])


class LateIngress(verifier_pb2_grpc.TargetServicer):
    """An ingress that drops the status of its first streams, and then reaches a target."""

    def __init__(self, dropped: int) -> None:
        self.left = dropped

    def Session(self, messages: Any, context: grpc.ServicerContext) -> Any:
        if self.left:
            self.left -= 1
        else:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
        yield from ()


def test_an_ingress_is_waited_for_until_a_refusal_comes_through() -> None:
    server, ingress = grpc.server(ThreadPoolExecutor(2)), LateIngress(2)
    verifier_pb2_grpc.add_TargetServicer_to_server(ingress, server)
    address = Address("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
    server.start()
    try:
        await_routes(address)
    finally:
        server.stop(None).wait()
    assert ingress.left == 0
