"""A key's limits hold, and no tenant reaches another's sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc

from grpc_comm.keys import WATCH_SECONDS
from grpc_comm.observability.metrics import Metrics
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.security import SecurityOptions
from grpc_comm.server.server import BackgroundServer
from tests.support.hand_streams import Said, dropped, go, left_open, say, under_way
from tests.support.hostile import bearer, keys_file, neighbour, resume, token_of
from tests.support.wire_fixtures import (
    WAIT,
    background,
    chain_of,
    decode_to,
    eventually,
    opening,
    successor_engine,
)

CODES = grpc.StatusCode
SERVICES: list[ServiceDescriptor] = [
    pb.DESCRIPTOR.services_by_name["Target"],
    health_pb2.DESCRIPTOR.services_by_name["Health"],
]
METHODS = [
    f"/{service.full_name}/{method.name}" for service in SERVICES for method in service.methods
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return keys_file(
        tmp_path / "keys.json",
        alice={},
        bob={},
        small={"sessions": 1, "sequence_length": 10, "tree_nodes": 3, "message_bytes": 200},
    )


@pytest.fixture
def server(file: Path) -> Iterator[BackgroundServer]:
    with background(successor_engine(rows=4), security=SecurityOptions(keys_file=file)) as server:
        yield server


@pytest.mark.parametrize(
    "metadata",
    [None, (("authorization", "Bearer wrong"),), (("authorization", token_of("alice")),)],
)
def test_every_method_but_a_health_check_refuses_who_has_no_key(
    server: BackgroundServer, metadata: tuple[tuple[str, str], ...] | None
) -> None:
    """Nothing that they send is parsed: to others these bytes are no message."""
    with grpc.insecure_channel(str(server.address)) as channel:
        for method in [*METHODS, "/outrider.v1.Target/Nonsense", "/x.Y/Z", ""]:
            if method.endswith("Health/Check"):
                continue
            stream: Any = channel.stream_stream(method)
            call = stream(iter([b"\xff" * 1_000_000]), metadata=metadata, timeout=WAIT)
            with pytest.raises(grpc.RpcError):
                next(call)
            unknown = CODES.UNAUTHENTICATED, "the token is missing or wrong (--token_file)"
            assert (call.code(), call.details()) == unknown or method == ""
    assert len(METHODS) >= 4


def test_health_is_told_to_anyone_as_a_whole_without_reading_what_they_sent_and_not_watched(
    server: BackgroundServer,
) -> None:
    asked = health_pb2.HealthCheckRequest
    with grpc.insecure_channel(str(server.address)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "no such service", "x" * 2_000_000):
            reply = stub.Check(asked(service=service), timeout=WAIT)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as refusal:
            next(stub.Watch(asked(), timeout=WAIT))
        assert refusal.value.code() is CODES.UNAUTHENTICATED
        known = {"metadata": bearer("bob"), "timeout": WAIT}
        reply = stub.Check(asked(service="outrider.v1.Target"), **known)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as refusal:
            stub.Check(asked(service="no such service"), **known)
        assert refusal.value.code() is CODES.NOT_FOUND


def test_a_session_resumes_for_its_own_tenant_only_and_others_learn_nothing_of_it(
    server: BackgroundServer,
) -> None:
    with left_open(server.address, "alice") as opened:
        pass
    stranger = say(server.address, [resume(opened)], "bob")
    unknown = say(server.address, [resume(opened, session_id="no-such-session")], "bob")
    assert stranger.code is CODES.NOT_FOUND
    assert stranger == unknown
    mine = say(server.address, [resume(opened), decode_to(5)], "alice")
    assert (mine.code, mine.tokens) == (CODES.OK, [4, 5])


def test_two_tenants_may_use_one_session_id_and_neither_notices(server: BackgroundServer) -> None:
    with left_open(server.address, "alice", session_id="the-same-id") as hers:
        his = say(server.address, [opening(session_id="the-same-id"), decode_to(5)], "bob")
        assert (his.code, his.tokens) == (CODES.OK, [4, 5])
    assert say(server.address, [resume(hers), decode_to(5)], "alice").tokens == [4, 5]


def test_a_key_opens_as_many_sessions_as_it_may_and_others_are_not_kept_out(
    server: BackgroundServer,
) -> None:
    with left_open(server.address, "small"):
        refused = say(server.address, [opening()], "small")
        refused.check(CODES.RESOURCE_EXHAUSTED, "may have 1 session")
        assert say(server.address, [opening(), decode_to(4)], "alice").code is CODES.OK
    eventually(
        lambda: say(server.address, [opening(), decode_to(4)], "small").code is CODES.OK
    )  # the one that was left makes room


def test_a_key_gets_prompts_and_outputs_up_to_its_length(server: BackgroundServer) -> None:
    longest = opening(prompt=range(9))
    assert say(server.address, [longest, decode_to(10)], "small").code is CODES.OK
    for messages in ([opening(prompt=range(10))], [opening(), decode_to(11)]):
        say(server.address, messages, "small").check(CODES.INVALID_ARGUMENT, "length", "10")
    assert say(server.address, [opening(), decode_to(10)], "small").tokens == list(range(4, 11))
    assert say(server.address, [opening(), decode_to(11)], "alice").code is CODES.OK


WAITING = decode_to(9, pace=pb.Decode.WAIT)


def test_a_key_gets_trees_up_to_its_size_also_after_resuming(server: BackgroundServer) -> None:
    """Of three nodes with the root, so that two of four candidates are computed."""
    for name, nodes in (("small", 3), ("alice", 5)):
        with left_open(server.address, name) as opened:
            pass
        for first in (resume(opened), opening()):
            with under_way(server.address, name, first) as stream:
                for message in (WAITING, chain_of([4, 5, 6, 7]), go(2)):
                    stream.send(message)
                answer = stream.spoken()
            assert (answer.nodes, len(answer.ids)) == (nodes, nodes)


def test_a_key_that_is_taken_out_of_the_file_opens_and_resumes_nothing_more(
    server: BackgroundServer, file: Path, tmp_path: Path
) -> None:
    with (
        left_open(server.address, "bob") as opened,
        neighbour(server.address, "alice", tmp_path) as other,
    ):
        keys_file(file, alice={}, carol={})
        assert say(server.address, [opening()], "bob").code is CODES.UNAUTHENTICATED
        other.goes_on()
    assert say(server.address, [resume(opened)], "bob").code is CODES.UNAUTHENTICATED
    assert say(server.address, [opening(), decode_to(4)], "carol").code is CODES.OK


WITHDRAWN = Said(
    [],
    CODES.UNAUTHENTICATED,
    "this key was removed from the target's keys during the call",
)


def test_streams_of_a_key_that_is_taken_out_end_within_a_second_silent_or_under_way(
    file: Path, tmp_path: Path
) -> None:
    assert 2 * WATCH_SECONDS < 1
    engine = successor_engine(rows=3)
    options = SecurityOptions(keys_file=file)
    with background(engine, security=options, lease_seconds=600) as server:
        other, address = neighbour(server.address, "alice", tmp_path), server.address
        with other as alice, under_way(address, "bob") as silent, under_way(address, "bob") as text:
            text.send(decode_to(40_000))
            text.answer()
            keys_file(file, alice={})
            assert silent.ending() == text.ending() == WITHDRAWN
            alice.goes_on()
            eventually(lambda: len(engine.sessions) == 1)  # bob's are not held for their lease


LOWERED: dict[str, tuple[dict[str, int], pb.ClientMessage, str]] = {
    "sequence_length": ({"sequence_length": 4}, decode_to(5), "sequence length of 4"),
    "message_bytes": ({"message_bytes": 10}, chain_of([4, 5, 6]), "this key may send 10"),
}


@pytest.mark.parametrize("limit", LOWERED)
def test_a_lowered_limit_holds_for_the_next_message_of_a_stream_under_way(
    limit: str, server: BackgroundServer, file: Path
) -> None:
    limits, message, words = LOWERED[limit]
    with under_way(server.address, "bob") as stream:
        rewrite(server, file, alice={}, bob=limits)
        stream.send(message)
        stream.ending().check(CODES.INVALID_ARGUMENT, words)


def rewrite(server: BackgroundServer, file: Path, **limits: dict[str, int]) -> None:
    keys_file(file, **limits)
    assert say(server.address, [opening(), decode_to(4)], "alice").code is CODES.OK


def test_a_keys_own_rate_of_candidates_holds_for_all_its_sessions(file: Path) -> None:
    metrics = Metrics()
    keys_file(file, alice={"nodes_per_second": 20})
    options = SecurityOptions(keys_file=file)
    engine = successor_engine(rows=2)
    with background(engine, security=options, metrics=metrics) as server:
        chain = chain_of(range(4, 19))
        first, second = under_way(server.address, "alice"), under_way(server.address, "alice")
        with first as one, second as other:
            one.send(chain)
            eventually(lambda: engine.sessions[0].candidates.live == 15)
            other.send(chain)
            eventually(lambda: dropped(metrics)["rate"] == 15)
            assert engine.sessions[1].candidates.live == 0


def test_a_lowered_tree_holds_for_the_next_forward(server: BackgroundServer, file: Path) -> None:
    with under_way(server.address, "bob") as stream:
        for message in (WAITING, chain_of([4, 5, 6, 7])):
            stream.send(message)
        rewrite(server, file, alice={}, bob={"tree_nodes": 2})
        stream.send(go(2))
        answer = stream.spoken()
        assert (answer.nodes, list(answer.ids)) == (2, [4, 5])


def test_fewer_sessions_leave_the_older_ones_to_a_key(server: BackgroundServer, file: Path) -> None:
    with under_way(server.address, "bob") as older, under_way(server.address, "bob") as newer:
        rewrite(server, file, alice={}, bob={"sessions": 1})
        newer.send(decode_to(5))
        newer.ending().check(CODES.RESOURCE_EXHAUSTED, "may have 1 sessions now")
        older.send(decode_to(4))
        assert older.tokens(1) == [4]


def test_a_text_under_way_ends_at_its_keys_lowered_length(
    server: BackgroundServer, file: Path
) -> None:
    with under_way(server.address, "bob") as stream:
        stream.send(decode_to(40_000))
        stream.tokens(5)
        keys_file(file, bob={"sequence_length": 6})
        ended = stream.ending()
    ended.check(CODES.INVALID_ARGUMENT, "this key's limit is now 6 in a session")


def test_claims_of_one_key_say_nothing_of_another_that_shares_its_rows(file: Path) -> None:
    engine, prompt = successor_engine(rows=2), list(range(1, 40))
    base, options = len(prompt) - 1, SecurityOptions(keys_file=file)
    with background(engine, security=options, share_prefixes=True) as server:
        said = say(server.address, [opening(prompt=prompt), decode_to(41)], "alice")
        assert said.code is CODES.OK
        with under_way(server.address, "bob", opening(prompt=prompt)) as stream:
            [session] = engine.sessions
            assert (session.tenant, session.reused) == ("bob", base)
            for message in (decode_to(45, pace=pb.Decode.WAIT), chain_of([7, 7], base)):
                stream.send(message)
            eventually(lambda: session.candidates.live == 2)
            stream.send(go(base))
            eventually(lambda: bool(engine.calibrations["bob"].factors))
    assert engine.calibrations["alice"].factors == {}
