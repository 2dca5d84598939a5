"""What a target does not take, it refuses in words: the session ends, the others and the target
go on.
"""

from __future__ import annotations

import grpc
import pytest

from grpc_comm.client.connection import connect
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.server.server import BackgroundServer
from grpc_comm.translate import FAULT, PROTOCOL_VERSION
from inference.errors import InvalidRequest, OutriderError
from inference.order import Decode
from inference.sampling import SamplingParams
from tests.support.wire_fixtures import (
    FAULTY,
    VOCABULARY,
    WAIT,
    assert_serves,
    candidates,
    chain_of,
    decode_to,
    opened,
    opening,
    raw_stub,
    rest,
    status,
)

INVALID, PRECONDITION, GONE = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
)


REFUSED: dict[str, tuple[list[pb.ClientMessage], grpc.StatusCode, str]] = {
    "nothing opened": ([chain_of()], INVALID, "must come first"),
    "opened twice": ([opening(), opening()], INVALID, "Open came twice"),
    "no kind at first": ([pb.ClientMessage()], INVALID, "must come first"),
    "no kind": ([opening(), pb.ClientMessage()], INVALID, "empty message"),
    "empty prompt": ([opening(prompt=[])], INVALID, "prompt is empty"),
    "long prompt": ([opening(prompt=[1] * 50_000)], INVALID, "leaves no room"),
    "unknown id": ([opening(prompt=[1, VOCABULARY])], INVALID, "outside the vocabulary"),
    "greatest id": ([opening(prompt=[2**32 - 1])], INVALID, "outside the vocabulary"),
    "negative temperature": ([opening(temperature=-1.0)], INVALID, "temperature"),
    "temperature not a number": ([opening(temperature=float("nan"))], INVALID, "temperature"),
    "infinite temperature": ([opening(temperature=float("inf"))], INVALID, "temperature"),
    "no top_p": ([opening(top_p=0.0)], INVALID, "top_p"),
    "top_p not a number": ([opening(top_p=float("nan"))], INVALID, "top_p"),
    "great top_k": ([opening(top_k=257)], INVALID, "top_k"),
    "great seed": ([opening(seed=2**63)], INVALID, "seed"),
    "other tokenizer": (
        [opening(tokenizer_fingerprint="t1", model_fingerprint="m1")],
        PRECONDITION,
        "tokenizers differ",
    ),
    "other model": ([opening(model_fingerprint="m1")], PRECONDITION, "another model"),
    "other protocol": ([opening(protocol_version=99)], PRECONDITION, "protocol 99"),
    "nodes without parents": (
        [opening(), chain_of((4, 5), parents=[0])],
        INVALID,
        "a token, a parent and a chance: got 2, 1 and 2",
    ),
    "nodes without chances": (
        [opening(), chain_of((4, 5), chances=b"x")],
        INVALID,
        "a token, a parent and a chance: got 2, 2 and 1",
    ),
    "parent before all numbers": ([opening(), chain_of(parents=[0, 2])], INVALID, "parent"),
    "numbers used up": ([opening(), chain_of(first=2**32 - 2)], INVALID, "used up its numbers"),
    "unknown node": ([opening(), chain_of((4, VOCABULARY))], INVALID, "outside the vocabulary"),
    "too many nodes": ([opening(), chain_of([4] * 1025)], INVALID, "at most 1024"),
    "nodes of the host's draft": ([opening(), chain_of(proposer=2)], INVALID, "a proposer is one"),
    "no end": ([opening(), decode_to(0)], INVALID, "a length of 1 or more"),
    "end beyond the sequence": ([opening(), decode_to(50_001)], INVALID, "50000"),
    "rate that is none": (
        [opening(), decode_to(9, tokens_per_second=float("nan"))],
        INVALID,
        "tokens_per_second",
    ),
    "rate that looks like none": (
        [opening(), decode_to(9, tokens_per_second=1e-3)],
        INVALID,
        "tokens_per_second",
    ),
    "too many stop ids": ([opening(), decode_to(9, stop_ids=[5] * 1025)], INVALID, "stop ids"),
    "unknown pace": ([opening(), decode_to(9, pace=5)], INVALID, "a pace is GO_ON or WAIT"),
    "tokens acknowledged before they are there": (
        [opening(), pb.ClientMessage(ack=pb.Ack(length=9))],
        INVALID,
        "9 tokens were acknowledged, and the session has 3",
    ),
    "short session id": ([opening(session_id="s")], INVALID, "8 to 64"),
    "unknown model name": ([opening(model="../../etc/passwd")], INVALID, "does not serve"),
    "unknown session": (
        [
            pb.ClientMessage(
                resume=pb.Resume(session_id="a" * 32, protocol_version=PROTOCOL_VERSION)
            )
        ],
        GONE,
        "open it anew",
    ),
    "resumed twice": ([opening(), pb.ClientMessage(resume=pb.Resume())], INVALID, "came twice"),
    "unknown attachment": (
        [
            pb.ClientMessage(
                attach=pb.Attach(session_id="a" * 32, protocol_version=PROTOCOL_VERSION)
            )
        ],
        GONE,
        "lets append",
    ),
    "fault": (
        [opening(prompt=[1, FAULTY, 2])],
        grpc.StatusCode.INTERNAL,
        f"{FAULT}: RuntimeError",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_malformed_message_is_refused_in_words_and_other_sessions_go_on(
    name: str, server: BackgroundServer
) -> None:
    messages, code, words = REFUSED[name]
    with connect(str(server.address)) as connection, raw_stub(server.address) as stub:
        witness = opened(connection)
        actual, details = status(stub.Session(iter(messages), timeout=WAIT))
        assert (actual, words in details) == (code, True), details
        assert "a private reason" not in details
        assert_serves(witness)
        assert_serves(opened(connection))


def test_bytes_that_are_no_message_are_refused_and_other_sessions_go_on(
    server: BackgroundServer,
) -> None:
    with (
        connect(str(server.address)) as connection,
        grpc.insecure_channel(str(server.address)) as channel,
    ):
        witness = opened(connection)
        call = channel.stream_stream(
            "/outrider.v1.Target/Session", request_serializer=bytes, response_deserializer=bytes
        )
        code, details = status(call(iter([b"\xff\xff\xff"]), timeout=WAIT))
        assert (code, "cannot be read" in details) == (INVALID, True)
        assert_serves(witness)


def test_a_refused_session_stays_ended(server: BackgroundServer) -> None:
    with connect(str(server.address)) as connection:
        session = opened(connection)
        session.propose(candidates(session, 2, [VOCABULARY]))
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="outside the vocabulary"):
                rest(session)
        assert_serves(opened(connection))


def test_a_fault_in_the_target_is_logged_with_its_traceback(
    server: BackgroundServer, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(str(server.address)) as connection:
        session = connection.session()
        session.open([1, FAULTY, 2], SamplingParams())
        session.decode(Decode(9))
        with pytest.raises(OutriderError, match="RuntimeError"):
            rest(session)
    assert "in choose" in caplog.text
