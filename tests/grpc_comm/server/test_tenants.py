"""At a target with keys: who is not known is refused, a key gets what its entry says, and no
tenant reaches another's sessions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from grpc_comm.client.connection import connect
from grpc_comm.keys import WATCH_SECONDS
from grpc_comm.observability.events import Drop
from grpc_comm.observability.statistics import Statistics
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.security import SecurityOptions
from grpc_comm.server.server import BackgroundServer
from grpc_comm.transport import Address
from inference.order import Decode, Pace
from inference.sampling import SamplingParams
from tests.support.hand_streams import go
from tests.support.hostile import (
    Outbox,
    bearer,
    keys_file,
    left_open,
    neighbour,
    resume,
    say,
    token_of,
)
from tests.support.wire_fixtures import (
    WAIT,
    background,
    candidates,
    chain_of,
    decode_to,
    eventually,
    news,
    opening,
    raw_stub,
    status,
    successor_engine,
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
        (("authorization", token_of("alice")),),
        (("authorization", "Bearer "),),
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
    said = say(server.address, [opening(), decode_to(5)], "alice")
    assert (said.code, said.tokens) == (CODES.OK, [4, 5])


def test_a_session_resumes_for_its_own_tenant_only_and_others_learn_nothing_of_it(
    server: BackgroundServer,
) -> None:
    with left_open(server.address, opening(), "alice") as opened:
        pass
    stranger = say(server.address, [resume(opened)], "bob")
    unknown = say(server.address, [resume(opened, session_id="no-such-session")], "bob")
    assert stranger.code is CODES.NOT_FOUND
    assert stranger == unknown
    mine = say(server.address, [resume(opened), decode_to(5)], "alice")
    assert (mine.code, mine.tokens) == (CODES.OK, [4, 5])


def test_two_tenants_may_use_one_session_id_and_neither_notices(server: BackgroundServer) -> None:
    with left_open(server.address, opening(session_id="the-same-id"), "alice") as hers:
        his = say(server.address, [opening(session_id="the-same-id"), decode_to(5)], "bob")
        assert (his.code, his.tokens) == (CODES.OK, [4, 5])
    assert say(server.address, [resume(hers), decode_to(5)], "alice").tokens == [4, 5]


def test_a_key_opens_as_many_sessions_as_it_may_and_others_are_not_kept_out(
    server: BackgroundServer,
) -> None:
    with left_open(server.address, opening(), "small"):
        refused = say(server.address, [opening()], "small")
        assert (refused.code, "may have 1 session" in refused.details) == (
            CODES.RESOURCE_EXHAUSTED,
            True,
        )
        assert say(server.address, [opening(), decode_to(4)], "alice").code is CODES.OK
    eventually(
        lambda: say(server.address, [opening(), decode_to(4)], "small").code is CODES.OK
    )  # the one that was left makes room


def test_a_key_gets_prompts_and_outputs_up_to_its_length(server: BackgroundServer) -> None:
    longest = opening(prompt=range(9))
    assert say(server.address, [longest, decode_to(10)], "small").code is CODES.OK
    for messages in ([opening(prompt=range(10))], [opening(), decode_to(11)]):
        refused = say(server.address, messages, "small")
        assert (refused.code, "length" in refused.details, "10" in refused.details) == (
            CODES.INVALID_ARGUMENT,
            True,
            True,
        )
    assert say(server.address, [opening(), decode_to(10)], "small").tokens == list(range(4, 11))
    assert say(server.address, [opening(), decode_to(11)], "alice").code is CODES.OK


WAITING = decode_to(9, pace=pb.Decode.WAIT)


def test_a_key_gets_trees_up_to_its_size_also_after_resuming(server: BackgroundServer) -> None:
    """Of three nodes with the root, so that two of four candidates are computed."""
    for name, nodes in (("small", 3), ("alice", 5)):
        with left_open(server.address, opening(), name) as opened:
            pass
        for first in (resume(opened), opening()):
            with under_way(server.address, name, first) as (outbox, call):
                for message in (WAITING, chain_of([4, 5, 6, 7]), go(2)):
                    outbox.put(message)
                answer = next(call)
                while not answer.tokens.ids:
                    answer = next(call)
            assert (answer.tokens.nodes, len(answer.tokens.ids)) == (nodes, nodes)


def test_a_client_is_told_its_keys_limits_and_keeps_to_them(
    server: BackgroundServer, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(token_of("small"))
    token.chmod(0o600)
    with connect(str(server.address), security=SecurityOptions(token_file=token)) as connection:
        assert (connection.description.sequence_length, connection.description.max_tree_nodes) == (
            10,
            3,
        )
        session = connection.session()
        session.open([1, 2, 3], SamplingParams())
        session.decode(Decode(9, pace=Pace.WAIT))
        assert session.room == 2
        session.propose(candidates(session, 2, [4, 5, 6]))
        session.go(2)
        assert news(session).tokens == (4, 5, 6)  # the third candidate was not computed


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
    assert say(server.address, [opening(), decode_to(4)], "carol").code is CODES.OK


@contextmanager
def under_way(
    address: Address, name: str, first: pb.ClientMessage | None = None
) -> Iterator[tuple[Outbox, Any]]:
    """A session that is open and goes on, and what its client writes and reads."""
    with raw_stub(address) as stub:
        outbox = Outbox([first or opening()])
        call = stub.Session(outbox, metadata=bearer(name), timeout=WAIT)
        next(call)
        yield outbox, call
        outbox.end()


WITHDRAWN = (
    CODES.UNAUTHENTICATED,
    "this key was taken out of the target's keys while the call was under way",
)


def test_a_silent_stream_of_a_key_that_is_taken_out_ends_within_a_second(
    file: Path,
    tmp_path: Path,
) -> None:
    assert 2 * WATCH_SECONDS < 1
    engine = successor_engine(rows=2)
    options = SecurityOptions(keys_file=file)
    with background(engine, security=options, lease_seconds=600) as server:
        other = neighbour(server.address, "alice", tmp_path)
        with under_way(server.address, "bob") as (_, call), other as alice:
            keys_file(file, alice={})
            assert status(call) == WITHDRAWN
            alice.goes_on()
            eventually(lambda: len(engine.sessions) == 1)  # bob's is not held for its lease


def test_a_text_under_way_of_a_key_that_is_taken_out_ends(
    server: BackgroundServer, file: Path
) -> None:
    with under_way(server.address, "bob") as (outbox, call):
        outbox.put(decode_to(40_000))
        next(call)
        keys_file(file, alice={})
        assert status(call) == WITHDRAWN
    assert say(server.address, [opening(), decode_to(5)], "alice").code is CODES.OK


LOWERED: dict[str, tuple[dict[str, int], pb.ClientMessage, str]] = {
    "sequence_length": ({"sequence_length": 4}, decode_to(5), "sequence length of 4"),
    "message_bytes": ({"message_bytes": 10}, chain_of([4, 5, 6]), "this key may send 10"),
}


@pytest.mark.parametrize("limit", LOWERED)
def test_a_lowered_limit_holds_for_the_next_message_of_a_stream_under_way(
    limit: str,
    server: BackgroundServer,
    file: Path,
) -> None:
    limits, message, words = LOWERED[limit]
    with under_way(server.address, "bob") as (outbox, call):
        keys_file(file, alice={}, bob=limits)
        assert (
            say(server.address, [opening(), decode_to(4)], "alice").code is CODES.OK
        )  # the file is read with this call
        outbox.put(message)
        code, details = status(call)
        assert (code, words in details) == (CODES.INVALID_ARGUMENT, True), details


def test_a_keys_own_rate_of_candidates_holds_for_all_its_sessions(file: Path) -> None:
    statistics = Statistics()
    keys_file(file, alice={"nodes_per_second": 20})
    options = SecurityOptions(keys_file=file)
    engine = successor_engine(rows=2)
    with background(engine, security=options, listener=statistics) as server:
        chain = chain_of(range(4, 19))
        first, second = under_way(server.address, "alice"), under_way(server.address, "alice")
        with first as (one, _), second as (other, _):
            one.put(chain)
            eventually(lambda: engine.sessions[0].candidates.live == 15)
            other.put(chain)
            eventually(lambda: statistics.dropped[Drop.RATE] == 15)
            assert engine.sessions[1].candidates.live == 0


def test_a_lowered_tree_holds_for_the_next_forward(server: BackgroundServer, file: Path) -> None:
    with under_way(server.address, "bob") as (outbox, call):
        for message in (WAITING, chain_of([4, 5, 6, 7])):
            outbox.put(message)
        keys_file(file, alice={}, bob={"tree_nodes": 2})
        assert say(server.address, [opening(), decode_to(4)], "alice").code is CODES.OK
        outbox.put(go(2))
        answer = next(call)
        while not answer.tokens.ids:
            answer = next(call)
        assert (answer.tokens.nodes, list(answer.tokens.ids)) == (2, [4, 5])


def test_fewer_sessions_leave_the_older_ones_to_a_key(server: BackgroundServer, file: Path) -> None:
    with (
        under_way(server.address, "bob") as (first, older),
        under_way(server.address, "bob") as (second, newer),
    ):
        keys_file(file, alice={}, bob={"sessions": 1})
        assert say(server.address, [opening(), decode_to(4)], "alice").code is CODES.OK
        second.put(decode_to(5))
        code, details = status(newer)
        assert (code, "may have 1 sessions now" in details) == (CODES.RESOURCE_EXHAUSTED, True)
        first.put(decode_to(4))
        answer = next(older)
        while not answer.tokens.ids:
            answer = next(older)
        assert list(answer.tokens.ids) == [4]


def test_a_text_under_way_ends_at_its_keys_lowered_length(
    server: BackgroundServer, file: Path
) -> None:
    with under_way(server.address, "bob") as (outbox, call):
        outbox.put(decode_to(40_000))
        for _ in range(5):
            next(call)
        keys_file(file, bob={"sequence_length": 6})
        code, details = status(call)
    words = "this key may have 6 in a session now"
    assert (code, words in details) == (CODES.INVALID_ARGUMENT, True)


def test_a_tenants_prompt_does_not_show_in_anothers_prefill(server: BackgroundServer) -> None:
    prompt = list(range(100, 400))

    def reused(name: str) -> int:
        said = say(server.address, [opening(prompt=prompt), decode_to(301)], name)
        assert said.code is CODES.OK
        return int(said.answers[0].opened.reused_tokens)

    assert reused("alice") == 0
    assert reused("bob") == 0
    assert reused("alice") > 0


def test_all_rows_are_free_when_everybody_has_gone(file: Path) -> None:
    engine = successor_engine(rows=2)
    with background(engine, security=SecurityOptions(keys_file=file)) as server:
        for name in ("alice", "bob", "small", "nobody"):
            say(server.address, [opening(), chain_of(), decode_to(9)], name)
        eventually(lambda: engine.free_rows == 2 and not engine.sessions)
