"""At a target with keys: who is not known is refused, a key gets what its entry says, and no tenant reaches another's sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from grpc_comm.client import connect
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.security import SecurityOptions
from grpc_comm.server import BackgroundServer
from inference.accept import Verdict
from inference.sampling import SamplingParams
from tests.hostile import bearer, eventually, keys_file, left_open, neighbour, resume, say, token_of
from tests.wire_fixtures import (
    WAIT,
    background,
    generate,
    opening,
    raw_stub,
    round_,
    successor_engine,
    tree,
)

CODES = grpc.StatusCode
SERVICES: list[ServiceDescriptor] = [
    pb.DESCRIPTOR.services_by_name["Target"],
    health_pb2.DESCRIPTOR.services_by_name["Health"],
    reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
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
    with background(
        successor_engine(rows=4), security=SecurityOptions(keys_file=file), reflection=True
    ) as server:
        yield server


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        (("authorization", "Bearer wrong"),),
        (("authorization", f"Basic {token_of('alice')}"),),
    ],
)
def test_every_method_but_a_health_check_refuses_who_has_no_key(
    server: BackgroundServer, metadata: tuple[tuple[str, str], ...] | None
) -> None:
    with grpc.insecure_channel(str(server.address)) as channel:
        for method in [*METHODS, "/outrider.v1.Target/Nonsense", "/x.Y/Z", ""]:
            if method.endswith("Health/Check"):
                continue
            call = channel.stream_stream(method)(
                iter([b"\x0a\x00"]), metadata=metadata, timeout=WAIT
            )
            with pytest.raises(grpc.RpcError):
                next(call)
            assert call.code() in (
                CODES.UNAUTHENTICATED,
                CODES.UNIMPLEMENTED if method == "" else None,
            ), method
    assert len(METHODS) >= 5


def test_a_key_lets_its_tenant_use_every_method(server: BackgroundServer) -> None:
    with raw_stub(server.address) as stub:
        assert (
            stub.Describe(
                pb.DescribeRequest(), metadata=bearer("alice"), timeout=WAIT
            ).max_tree_nodes
            == 32
        )
    said = say(server.address, [opening(), round_()], "alice")
    assert (said.code, said.answers[1].verdict.next_token) == (CODES.OK, 5)


def test_a_session_resumes_for_its_own_tenant_only_and_others_learn_nothing_of_it(
    server: BackgroundServer,
) -> None:
    with left_open(server.address, opening(), "alice") as opened:
        pass
    stranger = say(server.address, [resume(opened)], "bob")
    unknown = say(server.address, [resume(opened, session_id="no-such-session")], "bob")
    assert stranger.code is CODES.NOT_FOUND
    assert stranger == unknown
    mine = say(server.address, [resume(opened), round_()], "alice")
    assert (mine.code, mine.answers[1].verdict.next_token) == (CODES.OK, 5)


@pytest.mark.parametrize("key", [b"", b"\0" * 16, b"x" * 100_000])
def test_a_session_resumes_with_its_own_secret_only(server: BackgroundServer, key: bytes) -> None:
    with left_open(server.address, opening(), "alice") as opened:
        pass
    assert say(server.address, [resume(opened, resume_key=key)], "alice").code is CODES.NOT_FOUND
    assert say(server.address, [resume(opened)], "alice").code is CODES.OK


def test_two_tenants_may_use_one_session_id_and_neither_notices(server: BackgroundServer) -> None:
    with left_open(server.address, opening(session_id="the-same-id"), "alice") as hers:
        his = say(server.address, [opening(session_id="the-same-id"), round_()], "bob")
        assert (his.code, his.answers[1].verdict.next_token) == (CODES.OK, 5)
    assert say(server.address, [resume(hers), round_()], "alice").answers[1].verdict.next_token == 5


def test_a_key_opens_as_many_sessions_as_it_may_and_others_are_not_kept_out(
    server: BackgroundServer,
) -> None:
    with left_open(server.address, opening(), "small"):
        refused = say(server.address, [opening()], "small")
        assert (refused.code, "may have 1 session" in refused.details) == (
            CODES.RESOURCE_EXHAUSTED,
            True,
        )
        assert say(server.address, [opening()], "alice").code is CODES.OK
    eventually(
        lambda: say(server.address, [opening()], "small").code is CODES.OK
    )  # the one that was left makes room


def test_a_key_gets_prompts_and_outputs_up_to_its_length(server: BackgroundServer) -> None:
    assert say(server.address, [opening(prompt=range(9))], "small").code is CODES.OK
    for messages in ([opening(prompt=range(10))], [opening(), generate(8)]):
        refused = say(server.address, messages, "small")
        assert (refused.code, "length" in refused.details, "10" in refused.details) == (
            CODES.INVALID_ARGUMENT,
            True,
            True,
        )
    assert len(say(server.address, [opening(), generate(7)], "small").answers) == 8
    assert say(server.address, [opening(prompt=range(10))], "alice").code is CODES.OK
    assert say(server.address, [opening(), generate(8)], "alice").code is CODES.OK


def test_a_key_gets_trees_up_to_its_size_also_after_resuming(server: BackgroundServer) -> None:
    large = round_((3, 4, 5, 6), (0, 1, 2))
    assert say(server.address, [opening(), round_((3, 4, 5), (0, 1))], "small").code is CODES.OK
    with left_open(server.address, opening(), "small") as opened:
        pass
    for messages in ([resume(opened), large], [opening(), large]):
        refused = say(server.address, messages, "small")
        assert (refused.code, "at most 3" in refused.details) == (CODES.INVALID_ARGUMENT, True)
    assert say(server.address, [opening(), large], "alice").code is CODES.OK


def test_a_key_gets_messages_up_to_its_bytes(server: BackgroundServer) -> None:
    long = opening(session_id="x" * 8, model="y" * 200)
    refused = say(server.address, [long], "small")
    assert (refused.code, "this key may send 200" in refused.details) == (
        CODES.INVALID_ARGUMENT,
        True,
    )


def test_a_client_is_told_its_keys_limits_and_keeps_to_them(
    server: BackgroundServer, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(token_of("small"))
    with connect(str(server.address), security=SecurityOptions(token_file=token)) as connection:
        assert (connection.description.sequence_length, connection.description.max_tree_nodes) == (
            10,
            3,
        )
        verifier = connection.verifier()
        verifier.open([1, 2, 3], SamplingParams()).result(WAIT)
        verdict = verifier.submit(tree([3, 4, 5, 6], [-1, 0, 1, 2])).result(WAIT)
        assert verdict == Verdict((1, 2), 6)  # the fourth node was not sent


def test_a_key_that_is_taken_out_of_the_file_opens_and_resumes_nothing_more(
    server: BackgroundServer, file: Path, tmp_path: Path
) -> None:
    with (
        left_open(server.address, opening(), "bob") as opened,
        neighbour(server.address, "alice", tmp_path) as other,
    ):
        keys_file(file, alice={}, carol={})
        assert say(server.address, [opening()], "bob").code is CODES.UNAUTHENTICATED
        other.goes_on()
    assert say(server.address, [resume(opened)], "bob").code is CODES.UNAUTHENTICATED
    assert say(server.address, [opening()], "carol").code is CODES.OK


def test_a_tenants_prompt_does_not_show_in_anothers_prefill(server: BackgroundServer) -> None:
    prompt = list(range(100, 400))

    def reused(name: str) -> int:
        said = say(server.address, [opening(prompt=prompt)], name)
        assert said.code is CODES.OK
        return int(said.answers[0].opened.reused_tokens)

    assert reused("alice") == 0
    assert reused("bob") == 0
    assert reused("alice") > 0


def test_all_rows_are_free_when_everybody_has_gone(file: Path) -> None:
    engine = successor_engine(rows=2)
    with background(engine, security=SecurityOptions(keys_file=file)) as server:
        for name in ("alice", "bob", "small", "nobody"):
            say(server.address, [opening(), round_(), round_((5,), (), 1, 5)], name)
        eventually(lambda: engine.free_rows == 2 and not engine.sessions)
