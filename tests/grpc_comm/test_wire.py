"""What crosses the wire arrives as it was sent, costs what is claimed, and makes the text that
is made in process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
import pytest

from grpc_comm import messages, translate
from grpc_comm.client.connection import Connection, connect
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.transport import Address, parse_address
from inference.engine.engine import Engine
from inference.engine.local_session import LocalSession
from inference.errors import (
    Busy,
    Gone,
    InvalidRequest,
    LimitExceeded,
    Mismatch,
    OutriderError,
    Unavailable,
)
from inference.order import Decode, End, Pace, Progress
from inference.proposer import BASE, COLOCATED, COPY, MOST_CANDIDATES, NOBODY, Nodes, Proposal
from inference.sampling import SamplingParams
from tests.support import pairs
from tests.support.drafts import proposers_of, text_of
from tests.support.repository import ROOT
from tests.support.wire_fixtures import background, connected, describe, rest, successor_engine

PROTO = "grpc_comm/proto/verifier.proto"
PROMPT = [5, 17, 250, 3, 99]


@pytest.mark.skipif(find_spec("grpc_tools") is None, reason="grpcio-tools is not installed")
def test_the_committed_code_is_what_the_proto_generates(tmp_path: Path) -> None:
    out = [f"--{kind}={tmp_path}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I.", *out, PROTO],
        cwd=ROOT,
        check=True,
        timeout=60,
    )
    for made in sorted((tmp_path / PROTO).parent.iterdir()):
        assert (ROOT / PROTO).with_name(made.name).read_text() == made.read_text(), (
            f"{made.name}: run `make proto`"
        )


def test_candidates_arrive_as_they_were_sent_with_chances_in_a_byte() -> None:
    sent = [
        Proposal(70, BASE, 9, 1.0),
        Proposal(71, 70, 4, 0.5),
        Proposal(72, 12, 5, 1e-9),
        Proposal(73, BASE, 4, 0.9),
    ]
    [message] = messages.write_nodes(Nodes(33, sent, COPY))
    arrived = messages.read_nodes(pb.Nodes.FromString(message.SerializeToString()))
    assert (arrived.base, arrived.proposer) == (33, COPY)
    assert [one[:3] for one in arrived.proposals] == [one[:3] for one in sent]
    for one, there in zip(sent, arrived.proposals, strict=True):
        assert there.chance == pytest.approx(max(one.chance, 2**-15.94), rel=0.023)


@pytest.mark.parametrize("chance", [float("nan"), -1.0, 0.0, 7.0])
def test_what_is_no_chance_is_sent_as_one(chance: float) -> None:
    [message] = messages.write_nodes(Nodes(0, [Proposal(0, BASE, 1, chance)]))
    assert message.chances == (b"\0" if chance == 7 else b"\xff")


def test_more_candidates_than_one_message_takes_are_several() -> None:
    chain = [Proposal(number, number - 1, 7, 0.5) for number in range(MOST_CANDIDATES + 10)]
    first, second = messages.write_nodes(Nodes(0, chain))
    assert (len(first.tokens), len(second.tokens)) == (MOST_CANDIDATES, 10)
    assert messages.read_nodes(second).proposals[0][:2] == chain[MOST_CANDIDATES][:2]


WRONG_NODES: dict[str, dict[str, Any]] = {
    "fewer parents": {"parents": [0]},
    "fewer chances": {"chances": b"\0"},
    "no tokens": {"tokens": []},
    "a parent before the first number": {"parents": [0, 2]},
    "the greatest parent": {"parents": [0, 2**32 - 1]},
    "a proposer beside the target": {"proposer": COLOCATED},
    "an unknown proposer": {"proposer": 4},
    "too many": {"tokens": [1] * 1025, "parents": [0] * 1025, "chances": bytes(1025)},
}


@pytest.mark.parametrize("wrong", WRONG_NODES)
def test_what_is_no_list_of_candidates_is_refused(wrong: str) -> None:
    right = {"parents": [0, 1], "tokens": [4, 5], "chances": bytes(2)}
    messages.read_nodes(pb.Nodes(**right))
    with pytest.raises(InvalidRequest):
        messages.read_nodes(pb.Nodes(**(right | WRONG_NODES[wrong])))


def test_an_order_arrives_as_it_was_given() -> None:
    order = Decode(99, frozenset({3, 7}), Pace.WAIT, 40, True)
    message = messages.write_decode(order)
    assert messages.read_decode(pb.Decode.FromString(message.SerializeToString())) == order


@pytest.mark.parametrize(
    "wrong",
    [
        {"end": 0},
        {"pace": 2},
        {"stop_ids": range(1025)},
    ],
)
def test_an_order_that_nobody_can_follow_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        messages.read_decode(pb.Decode(**({"end": 9} | wrong)))


PROGRESS = Progress(
    7, (5, 6, 7), (0, 1, NOBODY), 40, 8, 7, 900, 31, 4, 0.25, 71.5, 3.0, 12, 31, End.NOT
)


def test_committed_tokens_arrive_as_they_were_sent() -> None:
    message = messages.write_tokens(PROGRESS, End.NOT)
    assert messages.read_tokens(pb.Tokens.FromString(message.SerializeToString())) == PROGRESS
    alone = PROGRESS._replace(proposers=(NOBODY,) * 3, end=End.STOP_ID)
    message = messages.write_tokens(alone, alone.end)
    assert not message.proposers
    assert messages.read_tokens(message) == alone


def test_sums_of_hours_fit() -> None:
    long = PROGRESS._replace(model_seconds=1e6, nodes=10**12)
    assert messages.read_tokens(messages.write_tokens(long, End.NOT)) == long


def test_an_end_that_is_not_known_and_proposers_of_other_tokens_are_refused() -> None:
    for wrong in ({"end": 8}, {"proposers": b"\0"}):
        with pytest.raises(Mismatch):
            messages.read_tokens(pb.Tokens(ids=[1, 2], **wrong))


@pytest.mark.parametrize(
    "params",
    [SamplingParams(), SamplingParams(0.7, 40, 0.9, 2**63 - 1), SamplingParams(1.0, 0, 1.0, 7)],
)
def test_sampling_params_arrive_as_both_sides_use_them(params: SamplingParams) -> None:
    description = describe(successor_engine())
    message = pb.Open.FromString(
        translate.write_open("s", description, [1], params).SerializeToString()
    )
    request = translate.read_open(message)
    assert request.params == params.on_the_wire()
    translate.check_fingerprints(request, description)


def test_a_description_arrives_as_it_was_sent() -> None:
    description = describe(successor_engine())
    assert (
        translate.read_description(translate.write_description(description, ["a", "b"]))
        == description
    )


def test_another_protocol_is_refused_in_words() -> None:
    with pytest.raises(Mismatch, match="same Outrider"):
        translate.read_description(pb.Description(protocol_version=99))


@pytest.mark.parametrize("prompt", [[-1], [2**32], [1.5]])
def test_ids_that_no_message_can_carry_are_refused(prompt: list[int]) -> None:
    with pytest.raises(InvalidRequest, match="token ids"):
        translate.write_open("s", describe(successor_engine()), prompt, SamplingParams())


class Failed(grpc.RpcError):
    """A call's failure with a status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._status = code, details

    def code(self) -> grpc.StatusCode:
        return self._status[0]

    def details(self) -> str:
        return self._status[1]

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return ((translate.RETRY_AFTER, "2500"),)


@pytest.mark.parametrize("kind", [InvalidRequest, Mismatch, Busy, Gone, Unavailable])
def test_an_error_keeps_its_kind_and_words_across_the_wire(kind: type[OutriderError]) -> None:
    arrived = translate.status_error(
        Failed(translate.status_code(kind("what is wrong")), "what is wrong"), "gone"
    )
    assert type(arrived) is kind
    assert "what is wrong" in str(arrived)
    assert not isinstance(arrived, Busy) or arrived.retry_after == 2.5


def test_a_limit_arrives_as_an_invalid_request_and_a_fault_of_the_target_as_itself() -> None:
    assert translate.status_code(LimitExceeded("x")) is grpc.StatusCode.INVALID_ARGUMENT
    fault = translate.status_error(
        Failed(grpc.StatusCode.INTERNAL, f"{translate.FAULT}: KeyError"), "gone"
    )
    assert type(fault) is OutriderError
    assert (
        type(translate.status_error(Failed(grpc.StatusCode.INTERNAL, "RST_STREAM"), "gone"))
        is Unavailable
    )
    assert (
        type(
            translate.status_error(Failed(grpc.StatusCode.UNIMPLEMENTED, "no such method"), "gone")
        )
        is Unavailable
    )
    assert (
        type(translate.status_error(Failed(grpc.StatusCode.UNAUTHENTICATED, "no"), "gone"))
        is InvalidRequest
    )


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("localhost:1", "localhost", 1), ("[::1]:50051", "::1", 50051), ("10.0.0.1:0", "10.0.0.1", 0)],
)
def test_an_address_is_host_and_port(text: str, host: str, port: int) -> None:
    assert parse_address(text) == Address(host, port)
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    "text", ["", "host", ":1", "host:", "::1:5", "host:70000", "http://host:1", "host:1x"]
)
def test_what_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"HOST:PORT|65535"):
        parse_address(text)


def test_a_node_takes_at_most_six_bytes() -> None:
    largest = range(151_936 - 32, 151_936)
    chain = [Proposal(90_000 + at, 89_999 + at, token, 0.5) for at, token in enumerate(largest)]
    [message] = messages.write_nodes(Nodes(4_096, chain))
    assert pb.ClientMessage(nodes=message).ByteSize() == 176


def test_what_the_target_says_of_itself_and_of_errors_cannot_write_to_a_terminal() -> None:
    described = translate.write_description(describe(successor_engine()), ["a"])
    described.device = "\x1b[2Jowned\n"
    assert translate.read_description(described).device == "?[2Jowned?"
    failed = Failed(grpc.StatusCode.INVALID_ARGUMENT, "\x1b]0;owned\x07" + "x" * 9_999)
    said = str(translate.status_error(failed, "gone"))
    assert said.startswith("?]0;owned?x")
    assert len(said) < 500


@pytest.fixture(scope="module")
def engine() -> Engine:
    return pairs.engine(pairs.decoder(1))


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    with connected(engine) as connection:
        yield connection


SAMPLINGS = [
    SamplingParams(),
    SamplingParams(0.7, seed=1),
    SamplingParams(1.0, seed=2),
    SamplingParams(1.0, top_p=0.9, seed=3),
]


@pytest.mark.parametrize("params", SAMPLINGS)
@pytest.mark.parametrize("pace", Pace)
@pytest.mark.parametrize("draft", ["close", "unrelated", "none"])
def test_the_text_is_that_of_the_target_alone_in_process(
    engine: Engine, connection: Connection, params: SamplingParams, pace: Pace, draft: str
) -> None:
    alone = text_of(PROMPT, params, LocalSession(engine), Decode(45))
    session = connection.session()
    order, proposers = Decode(45, pace=pace), proposers_of(draft, pace)
    assert text_of(PROMPT, params, session, order, proposers) == alone
    assert len(alone) == 40
    assert session.traffic.forwards <= 40


def test_a_draft_that_is_close_saves_forwards_over_the_wire(connection: Connection) -> None:
    session = connection.session()
    order = Decode(45, pace=Pace.WAIT)
    text_of(PROMPT, SamplingParams(), session, order, proposers_of("close", Pace.WAIT))
    assert session.traffic.forwards < 30
    assert session.traffic.nodes > 40


def test_the_text_ends_behind_its_first_stop_id(connection: Connection) -> None:
    alone = text_of(PROMPT, SamplingParams(), connection.session(), Decode(45))
    stop = alone[17]
    order = Decode(45, frozenset({stop}), pace=Pace.WAIT)
    proposers = proposers_of("close", Pace.WAIT)
    text = text_of(PROMPT, SamplingParams(), connection.session(), order, proposers)
    assert text == alone[: alone.index(stop) + 1]


def test_one_session_serves_one_text_after_another_and_adds_up_what_they_cost() -> None:
    with connected(successor_engine(rows=1)) as connection:
        session = connection.session()
        session.open([1, 2, 3], SamplingParams())
        session.decode(Decode(5))
        assert rest(session) == [4, 5]
        first = session.traffic.copy()
        assert (first.forwards, first.nodes, first.lone) == (2, 2, 2)
        assert 0 < first.share_seconds <= first.model_seconds
        assert min(first.messages_up, first.messages_down, first.bytes_up, first.bytes_down) > 0
        session.open([5, 6], SamplingParams())
        session.decode(Decode(10))
        assert rest(session) == [7, 8, 9, 10, 11, 12, 13, 14]
        assert (session.traffic.forwards, session.traffic.nodes) == (10, 10)
        assert session.traffic.bytes_up > first.bytes_up
        session.close()
        session.close()


def test_a_tokenizer_that_differs_is_refused_before_anything_is_sent() -> None:
    with (
        background(successor_engine()) as server,
        pytest.raises(Mismatch, match="tokenizers differ"),
    ):
        connect(str(server.address), tokenizer_fingerprint="t1")
