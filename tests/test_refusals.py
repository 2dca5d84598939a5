"""What a target does not take, it refuses in words: the session ends, the others and the target go on."""

from __future__ import annotations

import grpc
import pytest

from grpc_comm.client import connect
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.server import BackgroundServer
from grpc_comm.translate import FAULT, PROTOCOL_VERSION
from inference.errors import InvalidRequest, Mismatch, OutriderError
from tests.wire_fixtures import (
    FAULTY,
    VOCABULARY,
    WAIT,
    assert_serves,
    connected,
    generate,
    opened,
    opening,
    raw_stub,
    round_,
    status,
    successor_engine,
    tree,
)

INVALID, PRECONDITION, GONE = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
)


REFUSED: dict[str, tuple[list[pb.ClientMessage], grpc.StatusCode, str]] = {
    "nothing opened": ([round_()], INVALID, "must come first"),
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
    "empty tree": ([opening(), round_([], [])], INVALID, "as many parents as tokens"),
    "missing parent": ([opening(), round_([3, 4, 5], [0])], INVALID, "as many parents as tokens"),
    "parent after child": (
        [opening(), round_([3, 4, 5], [2, 0])],
        INVALID,
        "parents must stand before",
    ),
    "own parent": ([opening(), round_([3, 4], [1])], INVALID, "parents must stand before"),
    "great parent": ([opening(), round_([3, 4], [2**32 - 1])], INVALID, "must fit 32 bits"),
    "same siblings": ([opening(), round_([3, 4, 4], [0, 0])], INVALID, "siblings must be distinct"),
    "unknown node": ([opening(), round_([3, VOCABULARY], [0])], INVALID, "outside the vocabulary"),
    "too many nodes": ([opening(), round_(range(3, 36), range(32))], INVALID, "at most 32"),
    "far too many nodes": ([opening(), round_([3] * 30_000, [0] * 30_000)], INVALID, "at most 32"),
    "wrong root": ([opening(), round_([4, 5])], PRECONDITION, "root is token 4"),
    "wrong round": (
        [opening(), round_(number=1)],
        PRECONDITION,
        "round 1 came when round 0 was due",
    ),
    "wrong length": (
        [opening(), round_(base_length=4)],
        PRECONDITION,
        "counts 4 committed tokens, the target 3",
    ),
    "wrong prefix": (
        [opening(prompt=[1, 3, 3]), round_()],
        PRECONDITION,
        "not those of the target",
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
    "no tokens asked": ([opening(), generate(0)], INVALID, "max_tokens"),
    "fault": ([opening(), round_([3, FAULTY])], grpc.StatusCode.INTERNAL, f"{FAULT}: RuntimeError"),
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


def test_a_tree_that_does_not_fit_the_sequence_is_refused() -> None:
    with connected(successor_engine(sequence_length=5)) as connection:
        verifier = opened(connection)
        with pytest.raises(InvalidRequest, match="do not fit the sequence length of 5"):
            verifier.submit(tree([3, 4, 5], [-1, 0, 1])).result(WAIT)


def test_a_refused_session_stays_ended(server: BackgroundServer) -> None:
    with connect(str(server.address)) as connection:
        verifier = opened(connection)
        for _ in range(2):
            with pytest.raises(Mismatch, match="root is token 9"):
                verifier.submit(tree([9], [-1])).result(WAIT)
        with pytest.raises(Mismatch):
            next(verifier.generate(1, frozenset()))
        assert_serves(opened(connection))


def test_a_fault_in_the_target_is_logged_with_its_traceback(
    server: BackgroundServer, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(str(server.address)) as connection:
        verifier = opened(connection)
        with pytest.raises(OutriderError, match="a fault in the target: RuntimeError"):
            verifier.submit(tree([3, FAULTY], [-1, 0])).result(WAIT)
    assert "in choose" in caplog.text
