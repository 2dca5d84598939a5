"""Messages arrive as they were sent, in as many bytes as documented."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
import pytest

from grpc_comm import messages, statuses, translate
from grpc_comm.client.connection import connect
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.transport import Address, Endpoint, parse_address, parse_endpoint
from inference.errors import (
    Busy,
    Gone,
    InvalidRequest,
    LimitExceeded,
    Mismatch,
    OutriderError,
    Unavailable,
)
from inference.order import Decode, End, Opened, Pace, Progress, TokenLogProb
from inference.proposer import COLOCATED, COPY, MAX_CANDIDATES, NOBODY, Nodes
from inference.sampling import MAX_GRAMMAR, Grammar, GrammarKind, SamplingParams
from tests.support.exact import chain
from tests.support.refusals import assert_refused
from tests.support.repository import ROOT
from tests.support.wire_fixtures import (
    RpcFailure,
    background,
    describe,
    successor_engine,
)

PROTO = "grpc_comm/proto/verifier.proto"


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


def test_candidates_arrive_as_they_were_sent_in_at_most_six_bytes() -> None:
    sent = Nodes(33, 70, [0, 1, 60, 0], [9, 4, 5, 4], [1.0, 0.5, 1e-9, 0.9], COPY)
    [message] = messages.write_nodes(sent)
    arrived = messages.read_nodes(pb.Nodes.FromString(message.SerializeToString()))
    assert arrived._replace(chances=sent.chances) == sent
    for chance, there in zip(sent.chances, arrived.chances, strict=True):
        assert there == pytest.approx(max(chance, 2**-15.94), rel=0.023)
    largest = range(151_936 - 32, 151_936)
    [message] = messages.write_nodes(Nodes(4_096, 90_000, [1] * 32, largest, [0.5] * 32))
    assert pb.ClientMessage(nodes=message).ByteSize() == 176


@pytest.mark.parametrize("chance", [float("nan"), -1.0, 0.0, 7.0])
def test_what_is_no_chance_is_sent_as_one(chance: float) -> None:
    [message] = messages.write_nodes(Nodes(0, 0, [0], [1], [chance]))
    assert message.chances == (b"\0" if chance == 7 else b"\xff")


def test_more_candidates_than_one_message_takes_are_several() -> None:
    line = chain(0, [7] * (MAX_CANDIDATES + 10))
    first, second = messages.write_nodes(line)
    assert (len(first.tokens), len(second.tokens)) == (MAX_CANDIDATES, 10)
    assert messages.read_nodes(second).first == MAX_CANDIDATES
    assert (second.parents[0], first.parents[:2]) == (1, [0, 1])


WRONG_NODES: dict[str, tuple[dict[str, Any], str]] = {
    "fewer parents": ({"parents": [0]}, "parent"),
    "no parents": ({"parents": []}, "parent"),
    "a hundred thousand parents": ({"parents": [0] * 100_000}, "parent"),
    "fewer chances": ({"chances": b"\0"}, "chance"),
    "no chances": ({"chances": b""}, "chance"),
    "no tokens": ({"tokens": []}, "token"),
    "a first parent before the first number": ({"parents": [1, 1]}, "parent"),
    "a parent before the first number": ({"parents": [0, 2]}, "parent"),
    "the greatest parent": ({"parents": [0, 2**32 - 1]}, "parent"),
    "numbers without end": ({"first": 2**32 - 2}, "numbers"),
    "a proposer beside the target": ({"proposer": COLOCATED}, "proposer"),
    "an unknown proposer": ({"proposer": 4}, "proposer"),
    "the greatest proposer": ({"proposer": 2**32 - 1}, "proposer"),
    "too many": ({"tokens": [1] * 1025, "parents": [0] * 1025, "chances": bytes(1025)}, "1024"),
}


@pytest.mark.parametrize("wrong", WRONG_NODES)
def test_what_is_no_list_of_candidates_is_refused(wrong: str) -> None:
    changes, shown = WRONG_NODES[wrong]
    right: dict[str, Any] = {"parents": [0, 1], "tokens": [4, 5], "chances": bytes(2)}
    messages.read_nodes(pb.Nodes(**right))
    assert_refused(lambda: messages.read_nodes(pb.Nodes(**(right | changes))), [shown])


def test_an_order_arrives_as_it_was_given_or_is_refused() -> None:
    order = Decode(99, frozenset({3, 7}), Pace.WAIT, 40, True)
    message = messages.write_decode(order)
    assert messages.read_decode(pb.Decode.FromString(message.SerializeToString())) == order
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"end": 0}, "length"),
        ({"end": 9, "pace": 2}, "pace"),
        ({"end": 9, "stop_ids": range(1025)}, "stop ids"),
    ]
    for fields, shown in wrong:
        assert_refused(partial(messages.read_decode, pb.Decode(**fields)), [shown])


PROGRESS = Progress(
    position=7,
    tokens=(5, 6, 7),
    proposers=(0, 1, NOBODY),
    known=40,
    held=8,
    room=31,
    nodes=900,
    forwards=31,
    lone=4,
    queue_seconds=0.25,
    model_seconds=71.5,
    share_seconds=3.0,
)


def test_committed_tokens_arrive_as_they_were_sent() -> None:
    alone = replace(PROGRESS, proposers=(NOBODY,) * 3, end=End.STOP_ID)
    long = replace(PROGRESS, model_seconds=1e6, nodes=10**12)
    for progress in (PROGRESS, alone, long):
        message = messages.write_tokens(progress, progress.end)
        assert messages.read_tokens(pb.Tokens.FromString(message.SerializeToString())) == progress
        assert bool(message.proposers) == (progress is not alone)
    for wrong in ({"end": 8}, {"proposers": b"\0"}):
        with pytest.raises(Mismatch):
            messages.read_tokens(pb.Tokens(ids=[1, 2], **wrong))


PLAIN = [SamplingParams(), SamplingParams(0.7, 40, 0.9, 2**63 - 1), SamplingParams(1.0, 0, 1.0, 7)]
WITH_RULES = [
    *(SamplingParams(grammar=Grammar(kind, "[1]")) for kind in GrammarKind),
    SamplingParams(1.0, min_p=0.1, logprobs=0),
    SamplingParams(logprobs=20, prompt_logprobs=True),
    SamplingParams(0.7, 40, 0.9, 5, 0.05, 1.3, -0.1, 2.0, ((3, -100.0), (0, 0.7)), made=1),
]
WITH_LENGTH = SamplingParams(0.7, seed=5, min_tokens=9, end_ids=(2, 70_000), made=1)


def opening_of(params: SamplingParams) -> pb.Open:
    """The message that opens a session, as it arrives."""
    sent = translate.write_open("s", describe(successor_engine()), [1], params)
    return pb.Open.FromString(sent.SerializeToString())


@pytest.mark.parametrize("params", [*PLAIN, *WITH_RULES, WITH_LENGTH])
def test_sampling_params_arrive_as_both_sides_use_them(params: SamplingParams) -> None:
    opening = opening_of(params)
    assert translate.read_params(opening) == params.on_the_wire()
    translate.check_fingerprints(opening, describe(successor_engine()))


def test_a_target_that_does_not_know_a_parameter_refuses_the_protocol() -> None:
    """A target of protocol 3 passes over fields from 11 on, and refuses any other number."""
    without_ends = replace(WITH_LENGTH, end_ids=())  # nothing could end the text early
    versions = {3: [*PLAIN, without_ends], 4: WITH_RULES, 5: [WITH_LENGTH]}
    for version, cases in versions.items():
        for params in cases:
            message = opening_of(params)
            assert message.protocol_version == version, params
            assert any(field.number > 10 for field, _ in message.ListFields()) == (version > 3)
    for version in (4, 5):
        with pytest.raises(Mismatch, match=f"protocol {version}, this side 3"):
            translate.check_protocol(version)


def test_output_tokens_are_named_only_where_a_choice_depends_on_them() -> None:
    assert opening_of(SamplingParams(made=1)) == opening_of(SamplingParams())
    for counted in ({"presence_penalty": 1.0}, {"logprobs": 0, "prompt_logprobs": True}):
        assert opening_of(SamplingParams(made=2, **counted)).made == 2


GRAMMAR = pb.Grammar(text="a")
UNKNOWN: Any = 4
WRONG_PARAMS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "an unknown kind": ({"grammar": pb.Grammar(kind=UNKNOWN, text="a")}, ["CHOICE", "kind 4"]),
    "no grammar's text": ({"grammar": pb.Grammar()}, ["1 to", "0"]),
    "too long a grammar": (
        {"grammar": pb.Grammar(text="a" * (MAX_GRAMMAR + 1))},
        [str(MAX_GRAMMAR), str(MAX_GRAMMAR + 1)],
    ),
    "fewer biases": ({"bias_ids": [1, 2], "biases": [1.0]}, ["2 ids", "1"]),
    "no ids": ({"biases": [1.0]}, ["0 ids", "1"]),
    "an id twice": ({"bias_ids": [1, 1], "biases": [1.0, 2.0]}, ["twice"]),
    "too many biases": ({"bias_ids": range(301), "biases": [1.0] * 301}, ["300", "301"]),
    "more likeliest tokens than are told": ({"logprobs": 21}, ["20", "21"]),
    "the prompt's alone": ({"prompt_logprobs": True}, ["logprobs"]),
    "a minimum length with a grammar": ({"min_tokens": 1}, ["min_tokens", "grammar"]),
}


@pytest.mark.parametrize("wrong", WRONG_PARAMS)
def test_parameters_that_no_text_can_have_are_refused(wrong: str) -> None:
    changes, shown = WRONG_PARAMS[wrong]
    right: dict[str, Any] = {"protocol_version": 4, "top_p": 1.0, "grammar": GRAMMAR}
    translate.read_params(pb.Open(**right))
    assert_refused(lambda: translate.read_params(pb.Open(**(right | changes))), shown)


LOGPROBS = (
    TokenLogProb(-0.5, (4, 70_000), (-0.5, -2.0)),
    TokenLogProb(-2.0, (5, 0), (-1e9, -1.5e9)),
    TokenLogProb(0.0, (6, 3), (0.0, -16.0)),
)


def test_log_probabilities_arrive_as_they_were_sent_and_cost_their_bytes() -> None:
    bare = replace(PROGRESS, tokens=(5, 6, 7))
    sizes = [messages.write_tokens(bare, End.NOT).ByteSize()]
    for most in range(3):
        scored = replace(
            bare, logprobs=tuple(TokenLogProb(v, i[:most], t[:most]) for v, i, t in LOGPROBS)
        )
        message = messages.write_tokens(scored, End.NOT)
        assert messages.read_tokens(pb.Tokens.FromString(message.SerializeToString())) == scored
        sizes.append(message.ByteSize())
    assert [after - before for before, after in itertools.pairwise(sizes)] == [15, 21, 17]
    terms = translate.SessionTerms("s", 4, 1.0, 32, b"k", opened=Opened(logprobs=LOGPROBS))
    assert translate.read_opened(translate.write_opened(terms)) == terms


@pytest.mark.parametrize(
    "wrong",
    [
        {"top_ids": [4]},
        {"top_ids": [4, 5, 6], "top_logprobs": [-1.0] * 3},
        {"logprobs": [], "top_ids": [4], "top_logprobs": [-1.0]},
        {"top_ids": [4] * 42, "top_logprobs": [-1.0] * 42},
        {"logprobs": [-1.0, math.nan]},
        {"logprobs": [-1.0, 5.0]},
        {"top_ids": [4, 5], "top_logprobs": [-1.0, 1e-3]},
        {"top_ids": [4, 5], "top_logprobs": [-1.0, -math.inf]},
    ],
    ids=repr,
)
def test_log_probabilities_that_no_target_sends_are_not_taken(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"ids": [4, 5], "logprobs": [-1.0, -2.0]}
    messages.read_tokens(pb.Tokens(**right))
    with pytest.raises(Mismatch, match="log-probabilit"):
        messages.read_tokens(pb.Tokens(**(right | wrong)))


def test_a_description_arrives_as_it_was_sent_and_of_another_protocol_is_refused() -> None:
    described = replace(describe(successor_engine()), rules=True)
    message = translate.write_description(described, ["a", "b"])
    assert translate.read_description(message) == described
    message.protocol_version = 99
    with pytest.raises(Mismatch, match="same version of Outrider"):
        translate.read_description(message)


@pytest.mark.parametrize("prompt", [[-1], [2**32], [1.5]])
def test_ids_that_no_message_can_carry_are_refused(prompt: list[int]) -> None:
    with pytest.raises(InvalidRequest, match="token ids"):
        translate.write_open("s", describe(successor_engine()), prompt, SamplingParams())


@pytest.mark.parametrize("kind", [InvalidRequest, Mismatch, Busy, Gone, Unavailable])
def test_an_error_keeps_its_kind_and_words_across_the_wire(kind: type[OutriderError]) -> None:
    arrived = statuses.status_error(
        RpcFailure(
            statuses.status_code(kind("what is wrong")),
            "what is wrong",
            ((statuses.RETRY_AFTER, "2500"), (statuses.FROM_TARGET, "1")),
        ),
        "gone",
    )
    assert type(arrived) is kind
    assert "what is wrong" in str(arrived)
    assert not isinstance(arrived, Busy) or arrived.retry_after == 2.5


@pytest.mark.parametrize(
    ("details", "plainly"),
    [
        ("last error: UNKNOWN: ipv4:1.1.1.1:1: Failed to connect to remote host", "gone"),
        ("failed to connect: Connection refused", "gone (connection refused)"),
        ("Stream removed (recvmsg:Connection reset by peer)", "gone (the connection was lost)"),
        ("DNS resolution failed for host", "gone (the name has no address)"),
        ("Failed parsing HTTP/2 (Expected SETTINGS frame)", "gone"),
    ],
)
def test_the_words_of_grpc_reach_no_user(details: str, plainly: str) -> None:
    error = statuses.status_error(RpcFailure(grpc.StatusCode.UNAVAILABLE, details), "gone")
    assert str(error) == plainly


def test_a_limit_arrives_as_an_invalid_request_and_a_fault_of_the_target_as_itself() -> None:
    codes = grpc.StatusCode
    assert statuses.status_code(LimitExceeded("x")) is codes.INVALID_ARGUMENT
    for code, words, kind in (
        (codes.INTERNAL, f"{statuses.FAULT}: KeyError", OutriderError),
        (codes.INTERNAL, "RST_STREAM", Unavailable),
        (codes.UNIMPLEMENTED, "no such method", Unavailable),
        (codes.UNAUTHENTICATED, "no", InvalidRequest),
    ):
        assert type(statuses.status_error(RpcFailure(code, words), "gone")) is kind


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("localhost:1", "localhost", 1), ("[::1]:50051", "::1", 50051), ("10.0.0.1:0", "10.0.0.1", 0)],
)
def test_an_address_is_host_and_port(text: str, host: str, port: int) -> None:
    assert parse_address(text) == Address(host, port)
    for endpoint in (Endpoint(Address(host, port)), Endpoint(Address(host, port), resolved=True)):
        assert parse_endpoint(str(endpoint)) == endpoint
    assert str(parse_endpoint(text)) == text


@pytest.mark.parametrize(
    "text", ["", "host", ":1", "host:", "::1:5", "host:70000", "http://host:1", "host:1x"]
)
def test_what_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"HOST:PORT|65535"):
        parse_address(text)


def test_what_the_target_says_of_itself_and_of_errors_cannot_write_to_a_terminal() -> None:
    described = translate.write_description(describe(successor_engine()), ["a"])
    described.device = "\x1b[2Jowned\n"
    assert translate.read_description(described).device == "?[2Jowned?"
    failed = RpcFailure(grpc.StatusCode.INVALID_ARGUMENT, "\x1b]0;owned\x07" + "x" * 9_999)
    said = str(statuses.status_error(failed, "gone"))
    assert said.startswith("?]0;owned?x")
    assert len(said) < 500


def test_a_tokenizer_that_differs_is_refused_before_anything_is_sent() -> None:
    with (
        background(successor_engine()) as server,
        pytest.raises(Mismatch, match="tokenizers differ"),
    ):
        connect(str(server.address), tokenizer_fingerprint="t1")
