"""Any bytes get a correct answer or a refusal. EXAMPLES=N tries N times as many, drawn anew."""

from __future__ import annotations

import itertools
import json
import resource
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpc_comm.keys import Keys
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.server.server import BackgroundServer
from inference.engine.engine import Engine
from inference.errors import InvalidRequest
from tests.support.hostile import (
    DESCRIBE,
    ENDINGS,
    RIGHT,
    RawPeer,
    converse,
    frame,
    keys_file,
    token_of,
)
from tests.support.mutator import Mutator
from tests.support.tiers import examples
from tests.support.wire_fixtures import FAULTY, WAIT, Successor, background, eventually, opening

LENGTH = 64
MEGABYTES = 400
"""By which the process may grow over all examples, Hypothesis's own memory included."""

fuzzed = settings(
    max_examples=examples(40),
    database=None,
    suppress_health_check=list(HealthCheck),
)

NEAR = (FAULTY, LENGTH, 32)
"""Ids, lengths and tree sizes that this target takes, and some."""

text = st.text(max_size=80)
sessions = st.randoms(use_true_random=False).map(
    lambda chance: Mutator(chance, NEAR).session(opening(), RIGHT)
)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(
        Successor(3), sequence_length=LENGTH, max_tree_nodes=32, vocabulary=FAULTY, waiting=8
    )


@pytest.fixture(scope="module")
def server(engine: Engine) -> Iterator[BackgroundServer]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with background(engine) as server:
        yield server
        eventually(lambda: all(session.detached for session in engine.sessions))
    assert engine.free_rows == 3
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < MEGABYTES, f"the process grew by {grown:.0f} MB"


@pytest.fixture(scope="module")
def channel(server: BackgroundServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(str(server.address)) as channel:
        yield channel


@given(messages=sessions)
@fuzzed
def test_a_session_is_answered_rightly_as_long_as_it_is_right_and_then_refused(
    channel: grpc.Channel, messages: list[bytes]
) -> None:
    """Some of its messages are any bytes."""
    code, answers = converse(channel, messages)
    assert code in ENDINGS
    check_answers(messages[0], answers)


@given(
    request=st.one_of(
        st.binary(max_size=100),
        text.map(lambda name: pb.DescribeRequest(model=name).SerializeToString()),
    )
)
@fuzzed
def test_describe_answers_or_refuses(channel: Any, request: bytes) -> None:
    asked = _parsed(pb.DescribeRequest, request)
    call = channel.unary_unary(DESCRIBE).future(request, timeout=WAIT)
    if asked is not None and asked.model in ("", "successor"):
        assert pb.Description.FromString(call.result()).model == "successor"
    else:
        assert call.code() is grpc.StatusCode.INVALID_ARGUMENT


@given(
    frames=st.lists(
        st.one_of(
            st.binary(max_size=100),
            st.tuples(
                st.integers(0, 12), st.integers(0, 255), st.integers(0, 3), st.binary(max_size=40)
            ),
        )
    )
)
@settings(fuzzed, max_examples=examples(20))
def test_frames_that_no_library_sends_end_their_connection_at_most(
    server: BackgroundServer, frames: list[Any]
) -> None:
    with closing(RawPeer(server.address)) as peer:
        peer.greet()
        peer.call()
        for one in frames:
            try:
                peer.socket.sendall(one if isinstance(one, bytes) else frame(*one))
            except OSError:  # hung up on
                return


def check_answers(first: bytes, answers: Sequence[bytes]) -> None:
    """The text counts up from the prompt's last token, each token at its position, once."""
    opened = _parsed(pb.ClientMessage, first)
    prompt = list(opened.open.prompt) if opened is not None else []
    text = prompt[:]
    for answer in map(pb.ServerMessage.FromString, answers):
        if answer.HasField("tokens"):
            assert answer.tokens.position == len(text)
            text += answer.tokens.ids
    made = text[max(len(prompt) - 1, 0) :]
    assert all(after == (token + 1) % FAULTY for token, after in itertools.pairwise(made))


def _parsed(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


@given(
    value=st.one_of(
        st.binary(max_size=80),
        st.text(max_size=80),
        st.text(max_size=40).map(lambda token: f"Bearer {token}"),
    )
)
@fuzzed
def test_no_token_but_the_right_one_lets_in(value: str | bytes) -> None:
    keys = Keys.single("the-right-one")
    assert (keys.grant([("authorization", value)]) is not None) == (
        value in ("Bearer the-right-one", b"Bearer the-right-one")
    )


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["keys", "name", "token_sha256", "sessions"]), inner),
    ),
    max_leaves=10,
)


@given(
    content=st.one_of(
        st.binary(max_size=200),
        json_values.map(lambda value: json.dumps({"keys": [value]}).encode()),
    )
)
@fuzzed
def test_a_keys_file_is_read_or_refused_in_words_and_the_old_keys_stay(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = keys_file(tmp_path_factory.getbasetemp() / "fuzzed.json", alice={})
    keys, said = Keys.read(path), ""
    path.unlink()  # another version: a file of another size and number
    path.write_bytes(content)
    try:
        Keys.read(path)
    except InvalidRequest as error:
        said = str(error)
    assert said == "" or said.startswith(f"{path}")
    still = keys.grant([("authorization", f"Bearer {token_of('alice')}")])
    assert (still is not None) == (said != "")
