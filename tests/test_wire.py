"""What crosses the wire arrives as it was sent, costs what is claimed, and makes the text that is made in process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import grpc
import numpy as np
import pytest

from grpc_comm import translate
from grpc_comm.client import Connection, connect
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.transport import Address, parse_address
from inference.accept import Verdict
from inference.decode import Verifier, decode
from inference.engine import Engine
from inference.errors import (
    Busy,
    Gone,
    InvalidRequest,
    LimitExceeded,
    Mismatch,
    OutriderError,
    Unavailable,
)
from inference.local import LocalVerifier
from inference.policy import BestFirst, Chain, Policy
from inference.sampling import SamplingParams
from inference.session import Answer
from inference.tree import TokenTree
from tests import pairs
from tests.wire_fixtures import WAIT, background, connected, describe, successor_engine, tree

ROOT = Path(__file__).parent.parent
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


def test_a_tree_arrives_as_it_was_sent() -> None:
    sent = tree([9, 4, 5, 4], [-1, 0, 0, 2])
    message = pb.Round.FromString(translate.write_round(3, 70, 5, sent).SerializeToString())
    arrived = translate.read_tree(message, max_nodes=4)
    assert (message.number, message.base_length, message.digest) == (3, 70, 5)
    assert arrived.tokens.tolist() == [9, 4, 5, 4]
    assert arrived.parents.tolist() == [-1, 0, 0, 2]


def test_a_verdict_arrives_as_it_was_sent_with_its_times() -> None:
    message = translate.write_verdict(
        2, Answer(Verdict((1, 3), 151_935), queue_seconds=0.25, model_seconds=1e9, budget=16)
    )
    assert translate.read_verdict(message, 2, tree([1, 2, 3, 4], [-1, 0, 0, 1])) == Verdict(
        (1, 3), 151_935
    )
    assert (message.queue_microseconds, message.model_microseconds, message.budget) == (
        250_000,
        2**32 - 1,
        16,
    )


def test_a_verdict_on_another_round_or_on_nodes_that_were_not_sent_is_refused() -> None:
    message = translate.write_verdict(2, Answer(Verdict((1, 3), 5), 0.0, 0.0, 16))
    with pytest.raises(Mismatch, match="round 2"):
        translate.read_verdict(message, 1, tree([1, 2, 3, 4], [-1, 0, 0, 1]))
    with pytest.raises(Mismatch, match="not sent"):
        translate.read_verdict(message, 2, tree([1, 2], [-1, 0]))


@pytest.mark.parametrize(
    "params",
    [SamplingParams(), SamplingParams(0.7, 40, 0.9, 2**63 - 1), SamplingParams(1.0, 0, 1.0, 7)],
)
def test_sampling_params_arrive_as_both_sides_use_them(params: SamplingParams) -> None:
    description = describe(successor_engine())
    message = pb.Open.FromString(
        translate.write_open("s", description, [1], params).SerializeToString()
    )
    assert translate.read_params(message) == params.on_the_wire()
    translate.check_fingerprints(message, description)


def test_a_description_arrives_as_it_was_sent() -> None:
    description = describe(successor_engine())
    assert (
        translate.read_description(translate.write_description(description, ["a", "b"]))
        == description
    )


def test_another_protocol_is_refused_in_words() -> None:
    with pytest.raises(Mismatch, match="same Outrider on both"):
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


def test_a_tree_of_32_nodes_costs_at_most_160_bytes() -> None:
    largest = TokenTree.chain(np.arange(151_936 - 32, 151_936))
    message = pb.ClientMessage(round=translate.write_round(4096, 4096, 2**64 - 1, largest))
    assert len(message.SerializeToString()) == 149


@pytest.fixture(scope="module")
def engine() -> Engine:
    return pairs.engine(pairs.decoder(1))


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    with connected(engine) as connection:
        yield connection


def text(
    verifier: Verifier,
    policy: Policy,
    params: SamplingParams,
    draft_seed: int = 2,
    tokens: int = 16,
) -> list[int]:
    """Speculative decoding with a draft that has nothing to do with the target (draft_seed 1: a little off it)."""
    draft = pairs.perturbed(1, 0.02) if draft_seed == 1 else pairs.decoder(draft_seed)
    steps = decode(PROMPT, params, pairs.drafter(draft, policy), verifier, tokens)
    made = [token for step in steps for token in step.tokens]
    verifier.close()
    return made


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(0.7, seed=1),
        SamplingParams(1.0, seed=2),
        SamplingParams(1.0, top_p=0.9, seed=3),
    ],
)
@pytest.mark.parametrize("policy", [Chain(4), BestFirst(nodes=12, depth=4)])
@pytest.mark.parametrize("draft_seed", [1, 2])
def test_the_text_is_that_of_decoding_in_process(
    engine: Engine, connection: Connection, params: SamplingParams, policy: Policy, draft_seed: int
) -> None:
    assert text(connection.verifier(), policy, params, draft_seed) == text(
        LocalVerifier(engine), policy, params, draft_seed
    )


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(0.7, seed=4)])
def test_decoding_by_the_target_alone_is_its_decoding_in_process(
    engine: Engine, connection: Connection, params: SamplingParams
) -> None:
    texts = []
    for verifier in (LocalVerifier(engine), connection.verifier()):
        verifier.open(PROMPT, params).result(WAIT)
        texts.append(list(verifier.generate(20, frozenset())))
        verifier.close()
    assert texts[0] == texts[1]


def test_trees_and_decoding_alone_alternate_in_one_session() -> None:
    with connected(successor_engine()) as connection:
        verifier = connection.verifier()
        verifier.open([1, 2, 3], SamplingParams()).result(WAIT)
        assert verifier.submit(tree([3, 9, 4, 5], [-1, 0, 0, 2])).result(WAIT) == Verdict((2, 3), 6)
        assert list(verifier.generate(3, frozenset())) == [7, 8, 9]
        assert verifier.submit(tree([9], [-1])).result(WAIT) == Verdict((), 10)
        assert list(verifier.generate(10, frozenset({12}))) == [11, 12]
        assert list(verifier.generate(0, frozenset())) == []
        assert verifier.submit(tree([12, 13], [-1, 0])).result(WAIT) == Verdict((1,), 14)
        verifier.close()


def test_one_verifier_serves_one_session_after_another_and_adds_up_their_traffic() -> None:
    with connected(successor_engine(rows=1)) as connection:
        verifier = connection.verifier()
        verifier.open([1, 2, 3], SamplingParams()).result(WAIT)
        before = replace(verifier.traffic)
        verifier.submit(tree([3, 4], [-1, 0])).result(WAIT)
        after = replace(verifier.traffic)
        assert (
            after.bytes_up - before.bytes_up == 20
        )  # head 2, base length 2, two ids 4, one parent 3, digest 9
        assert after.bytes_down > before.bytes_down
        assert after.model_seconds > before.model_seconds == 0 < after.prefill_seconds
        verifier.open([5, 6], SamplingParams()).result(WAIT)
        assert list(islice(verifier.generate(5, frozenset()), 2)) == [7, 8]
        assert verifier.traffic.bytes_up > after.bytes_up
        verifier.close()
        verifier.close()


def test_a_tokenizer_that_differs_is_refused_before_anything_is_sent() -> None:
    with (
        background(successor_engine()) as server,
        pytest.raises(Mismatch, match="tokenizers differ"),
    ):
        connect(str(server.address), tokenizer_fingerprint="t1")
