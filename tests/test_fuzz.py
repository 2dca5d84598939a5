"""Whatever a client sends, in whatever order: it is answered rightly or refused, its neighbour goes on, and nothing is left behind.

FUZZ_EXAMPLES=N tries N random examples of each kind instead of the same few.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from grpc_comm.keys import Keys
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.server import BackgroundServer
from inference.backends import Segment
from inference.drafters.pool import DraftPool
from inference.engine import Engine
from inference.errors import InvalidRequest
from inference.policy import Chain, Ranked
from inference.tree import IntArray
from tests.hostile import (
    SESSION,
    Neighbour,
    RawPeer,
    digest,
    eventually,
    keys_file,
    neighbour,
    token_of,
)
from tests.wire_fixtures import FAULTY, WAIT, Successor, background, generate, opening

ENDINGS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
LENGTH = 64
MEGABYTES = 400
"""By which the process may grow over all examples, Hypothesis's own memory included."""

fuzzed = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "120")),
    derandomize="FUZZ_EXAMPLES" not in os.environ,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

uint32 = st.one_of(st.integers(0, 8), st.integers(0, FAULTY + 5), st.integers(0, 2**32 - 1))
uint64 = st.one_of(st.integers(0, 8), st.integers(0, 2**64 - 1))
ids = st.lists(uint32, max_size=LENGTH + 40)
text = st.text(max_size=80)
fractions = st.one_of(st.floats(width=32), st.sampled_from([0.0, 0.7, 1.0]))

OPEN: dict[str, st.SearchStrategy[Any]] = {
    "session_id": text,
    "protocol_version": uint32,
    "model_fingerprint": text,
    "tokenizer_fingerprint": text,
    "prompt": ids,
    "temperature": fractions,
    "top_k": uint32,
    "top_p": fractions,
    "seed": uint64,
    "model": text,
}
ROUND: dict[str, st.SearchStrategy[Any]] = {
    "number": uint32,
    "base_length": uint32,
    "tokens": ids,
    "parents": ids,
    "digest": uint64,
    "ahead": st.booleans(),
}
shapes = st.builds(pb.Shape, chain=uint32, nodes=uint32, depth=uint32)
CONTINUE: dict[str, st.SearchStrategy[Any]] = {
    "max_tokens": uint32,
    "stop_ids": ids,
    "base_length": uint32,
    "digest": uint64,
    "fused": st.booleans(),
    "shape": shapes,
}
GENERATE: dict[str, st.SearchStrategy[Any]] = {
    "max_tokens": uint32,
    "stop_ids": ids,
    "fused": st.booleans(),
    "shape": shapes,
}
RESUME: dict[str, st.SearchStrategy[Any]] = {
    "session_id": text,
    "protocol_version": uint32,
    "resume_key": st.binary(max_size=40),
    "epoch": uint32,
}


def test_every_field_of_every_message_is_fuzzed() -> None:
    fields = {
        "open": OPEN,
        "round": ROUND,
        "generate": CONTINUE,
        "resume": RESUME,
        "close": {},
        "heartbeat": {},
        "halt": {},
    }
    kinds = pb.ClientMessage.DESCRIPTOR.fields_by_name
    assert {name: set(kind.message_type.fields_by_name) for name, kind in kinds.items()} == {
        name: set(of) for name, of in fields.items()
    }
    assert set(pb.GenerateRequest.DESCRIPTOR.fields_by_name) == {"open", *GENERATE}


def some(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Other values for some of the fields, mostly for few."""
    one = st.sampled_from(sorted(fields)).flatmap(
        lambda name: fields[name].map(lambda value: {name: value})
    )
    return st.one_of(st.just({}), one, st.fixed_dictionaries({}, optional=fields))


openings = some(OPEN).map(lambda changes: opening(**changes))
continuations = some(CONTINUE).map(lambda changes: changed(generate(2), changes))
others = st.one_of(
    openings,
    some(RESUME).map(lambda changes: pb.ClientMessage(resume=pb.Resume(**changes))),
    st.sampled_from(
        [pb.ClientMessage(**said) for said in ({}, {"close": {}}, {"heartbeat": {}}, {"halt": {}})]
    ),
)


def changed(message: pb.ClientMessage, changes: dict[str, Any]) -> pb.ClientMessage:
    """The message of this kind with other values in some of its fields."""
    kind = message.WhichOneof("kind")
    body = getattr(message, kind)
    values = {field.name: value for field, value in body.ListFields()}
    return pb.ClientMessage(**{kind: type(body)(**(values | changes))})


@st.composite
def sessions(draw: st.DrawFn) -> list[bytes]:
    """A session as it should be, [1, 2, 3] and then the root alone round by round, with changes here and there; each message as bytes."""
    messages = [draw(st.one_of(st.just(opening()), openings))]
    rounds = 0
    for _ in range(draw(st.integers(0, 8))):
        if draw(st.integers(0, 3)) == 0:
            messages.append(draw(st.one_of(continuations, others)))
            continue
        length = 3 + rounds
        tree = draw(
            st.sampled_from(
                [([length], []), ([length, length + 1, 9], [0, 0]), ([length, 7, 8, 9], [0, 1, 2])]
            )
        )
        right = pb.Round(
            number=rounds,
            base_length=length,
            digest=digest(range(1, length + 1)),
            tokens=tree[0][:1],
            parents=[],
        )
        wrong = {"tokens": tree[0], "parents": tree[1]} if draw(st.booleans()) else {}
        messages.append(
            changed(
                pb.ClientMessage(round=right),
                wrong | (draw(some(ROUND)) if draw(st.integers(0, 3)) == 0 else {}),
            )
        )
        rounds += 1
    return [draw(damaged(message.SerializeToString())) for message in messages]


def damaged(message: bytes) -> st.SearchStrategy[bytes]:
    """The message, now and then cut, with a byte changed, twice over, or something else altogether."""
    length = len(message)
    cut = st.integers(0, length).map(lambda end: message[:end])
    flipped = st.tuples(st.integers(0, max(length - 1, 0)), st.binary(min_size=1, max_size=3)).map(
        lambda change: message[: change[0]] + change[1] + message[change[0] + 1 :]
    )
    damage = st.one_of(cut, flipped, st.just(message * 2), st.binary(max_size=200))
    return st.integers(0, 11).flatmap(lambda dice: damage if dice == 0 else st.just(message))


class Guesser(Successor):
    """A draft that guesses token + 1 after even tokens, and something else after others."""

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        return [Ranked(*self._children(segment.tokens[segment.pick], k)) for segment in segments]

    def _children(
        self, tokens: IntArray, k: int
    ) -> tuple[IntArray, NDArray[np.float32]]:  # [m, k] both
        ids = (tokens[:, None] + 1 + tokens[:, None] % 2 + np.arange(k)) % FAULTY
        return ids.astype(np.int32), np.tile(-np.arange(k, dtype=np.float32), (len(tokens), 1))


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(
        Successor(3), sequence_length=LENGTH, max_tree_nodes=32, vocabulary=FAULTY, waiting=8
    )


@pytest.fixture(scope="module")
def server(engine: Engine) -> Iterator[BackgroundServer]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with background(engine, drafts=DraftPool(Guesser(2), Chain(2), room=40)) as server:
        yield server
        eventually(lambda: all(session.detached for session in engine.sessions))
    assert engine.free_rows == 3
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < MEGABYTES, f"the process grew by {grown:.0f} MB"


@pytest.fixture(scope="module")
def channel(server: BackgroundServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(str(server.address)) as channel:
        yield channel


@pytest.fixture
def beside(server: BackgroundServer) -> Iterator[None]:
    """Another client's sessions, one after another, all the while; each must be as if it were alone."""
    stopped, done, failures = threading.Event(), [0], []

    def work() -> None:
        try:
            while not stopped.is_set():
                with neighbour(server.address) as other:
                    _goes_on_for(other, rounds=15)
                    done[0] += 1
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    eventually(lambda: done[0] > 0 or bool(failures))
    stopped.set()
    thread.join(WAIT)
    assert not failures, failures
    assert not thread.is_alive()


def _goes_on_for(other: Neighbour, rounds: int) -> None:
    for _ in range(rounds):
        other.goes_on()


@given(messages=sessions())
@fuzzed
def test_a_session_is_answered_rightly_as_long_as_it_is_right_and_then_refused(
    channel: grpc.Channel, beside: None, messages: list[bytes]
) -> None:
    code, answers = converse(channel, messages)
    assert code in ENDINGS
    check_answers(messages, answers)


@given(messages=st.lists(st.binary(max_size=300), max_size=4), first=st.booleans())
@fuzzed
def test_bytes_are_refused_or_happen_to_be_a_session(
    channel: grpc.Channel, beside: None, messages: list[bytes], first: bool
) -> None:
    code, _ = converse(channel, [opening().SerializeToString(), *messages] if first else messages)
    assert code in ENDINGS


@given(first=openings, changes=some(GENERATE))
@fuzzed
def test_a_text_is_made_or_refused(
    channel: grpc.Channel, beside: None, first: pb.ClientMessage, changes: dict[str, Any]
) -> None:
    request = pb.GenerateRequest(**({"open": first.open, "max_tokens": 5} | changes))
    call = channel.unary_stream(
        "/outrider.v1.Target/Generate", response_deserializer=pb.Generated.FromString
    )(request.SerializeToString())
    tokens: list[int] = []
    with suppress(grpc.RpcError):
        for message in call:
            tokens += message.ids
    assert call.code() in ENDINGS
    assert all(
        after == (token + 1) % FAULTY
        for token, after in itertools.pairwise([*request.open.prompt[-1:], *tokens])
    )


@given(
    request=st.one_of(
        st.binary(max_size=100),
        text.map(lambda name: pb.DescribeRequest(model=name).SerializeToString()),
    )
)
@fuzzed
def test_describe_answers_or_refuses(channel: grpc.Channel, beside: None, request: bytes) -> None:
    asked = _parsed(pb.DescribeRequest, request)
    call = channel.unary_unary("/outrider.v1.Target/Describe").future(request, timeout=WAIT)
    if asked is not None and asked.model in ("", "successor"):
        assert pb.Description.FromString(call.result()).model == "successor"
    else:
        assert call.code() is (
            grpc.StatusCode.UNKNOWN if asked is None else grpc.StatusCode.INVALID_ARGUMENT
        )


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
@settings(fuzzed, max_examples=40)
def test_frames_that_no_library_sends_end_their_connection_at_most(
    server: BackgroundServer, beside: None, frames: list[Any]
) -> None:
    with closing(RawPeer(server.address)) as peer:
        peer.greet()
        peer.call()
        for frame in frames:
            if not isinstance(frame, bytes):
                kind, flags, stream, payload = frame
                frame = (
                    len(payload).to_bytes(3, "big")
                    + bytes((kind, flags))
                    + stream.to_bytes(4, "big")
                    + payload
                )
            try:
                peer.socket.sendall(frame)
            except OSError:  # hung up on
                return


def converse(
    channel: grpc.Channel, messages: Sequence[bytes]
) -> tuple[grpc.StatusCode, list[pb.ServerMessage]]:
    call = channel.stream_stream(SESSION, response_deserializer=pb.ServerMessage.FromString)(
        iter(messages), timeout=WAIT
    )
    answers: list[pb.ServerMessage] = []
    with suppress(grpc.RpcError):
        answers.extend(call)
    return call.code(), answers


def check_answers(messages: Sequence[bytes], answers: Sequence[pb.ServerMessage]) -> None:
    """Every verdict is that of its round, for this target: the path counts up from the root, and so does the next token."""
    rounds = [
        message.round
        for data in messages
        if (message := _parsed(pb.ClientMessage, data)) and message.HasField("round")
    ]
    verdicts = [answer.verdict for answer in answers if answer.HasField("verdict")]
    for answer in answers:
        assert all(
            after == (token + 1) % FAULTY for token, after in itertools.pairwise(answer.tokens.ids)
        )
    for asked, verdict in zip(rounds, verdicts, strict=False):
        assert verdict.number == asked.number
        made = [asked.tokens[0], *(asked.tokens[node] for node in verdict.path), verdict.next_token]
        assert all(after == (token + 1) % FAULTY for token, after in itertools.pairwise(made))
        above = [-1, *asked.parents]
        assert [above[node] for node in verdict.path] == [0, *verdict.path][: len(verdict.path)]


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
    assert (keys.identify([("authorization", value)]) is not None) == (
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
    keys = Keys.read(path)
    rewrite(path, content)
    said = refusal_of(path)
    assert said == "" or said.startswith(f"{path}: ")
    still = keys.identify([("authorization", f"Bearer {token_of('alice')}")])
    assert (still is not None) == (said != "")


def refusal_of(path: Path) -> str:
    """What is said of the file; empty when it can be used."""
    try:
        Keys.read(path)
    except InvalidRequest as error:
        return str(error)
    return ""


def rewrite(path: Path, content: bytes) -> None:
    """As another version: a file of another size and number."""
    path.unlink()
    path.write_bytes(content)
