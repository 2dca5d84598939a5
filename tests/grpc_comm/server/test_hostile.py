"""A hostile peer ends only its own session: others continue, and all rows are freed."""

from __future__ import annotations

import itertools
import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpc_comm.observability.metrics import Metrics
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.server.model_registry import Served
from grpc_comm.server.server import BackgroundServer
from tests.support.hand_streams import Raw, dropped, say
from tests.support.hostile import SESSION, Neighbour, RawPeer, deaf, frame, neighbour
from tests.support.tiers import examples
from tests.support.wire_fixtures import (
    FAULTY,
    VOCABULARY,
    WAIT,
    background,
    chain_of,
    decode_to,
    eventually,
    opening,
    raw_stub,
    status,
    successor_engine,
)

CODES = grpc.StatusCode
LOADED: list[str] = []
"""Models that somebody came to load."""


class Attacked(NamedTuple):
    """A target with two rows, one of which a neighbour has."""

    server: BackgroundServer
    neighbour: Neighbour


def load() -> Served:
    LOADED.append("other")
    raise AssertionError("nobody asked for this model")


@pytest.fixture(scope="module")
def attacked() -> Iterator[Attacked]:
    engine = successor_engine(rows=2)
    with background(engine, listed={"other": load}) as server:
        with neighbour(server.address) as other:
            yield Attacked(server, other)
        eventually(
            lambda: all(session.detached for session in engine.sessions)
        )  # those whose call broke are held for their lease
    assert engine.free_rows == 2


@pytest.fixture
def served(attacked: Attacked) -> Iterator[BackgroundServer]:
    """When the attack is over, the neighbour goes on and others are served."""
    attacked.neighbour.goes_on()
    yield attacked.server
    attacked.neighbour.goes_on()
    assert say(attacked.server.address, [opening(), decode_to(5)]).code is CODES.OK


@contextmanager
def impatient(lease: float = 0.5) -> Iterator[BackgroundServer]:
    """A target with one row that soon has enough of silence; when the attack is over it serves."""
    engine = successor_engine(rows=1)
    with background(engine, lease_seconds=lease) as server:
        yield server
        eventually(lambda: engine.free_rows == 1 and not engine.sessions)
        assert say(server.address, [opening(), decode_to(5)]).code is CODES.OK


FLOATS = [float("nan"), float("inf"), -float("inf"), -1.0, -1e-9, 1e-4, 1e4]
BAD_OPENINGS: dict[str, tuple[dict[str, Any], str]] = {
    **{f"temperature {value}": ({"temperature": value}, "temperature") for value in FLOATS},
    **{f"top_p {value}": ({"top_p": value}, "top_p") for value in [*FLOATS[:5], 0.0, 1.0001]},
    "top_k 257": ({"top_k": 257}, "top_k"),
    "top_k 2**32 - 1": ({"top_k": 2**32 - 1}, "top_k"),
    "seed 2**63": ({"seed": 2**63}, "seed"),
    "no prompt": ({"prompt": []}, "prompt"),
    "an id beyond the vocabulary": ({"prompt": [1, VOCABULARY]}, "vocabulary"),
    "the greatest id": ({"prompt": [2**32 - 1]}, "vocabulary"),
    "a prompt that is too long": ({"prompt": [1] * 50_000}, "50000"),
    "no session id": ({"session_id": ""}, "8 to 64"),
    "a short session id": ({"session_id": "s"}, "8 to 64"),
    "a long session id": ({"session_id": "x" * 65}, "8 to 64"),
    "a session id of other signs": ({"session_id": "ä" * 8}, "8 to 64"),
    **{
        f"{name} {value}": ({"protocol_version": 4, name: value}, name)
        for name in ("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
        for value in (float("nan"), float("inf"), -float("inf"), -2.1, 1e4)
    },
    **{
        f"a bias of {value}": ({"bias_ids": [1], "biases": [value]}, "logit_bias")
        for value in (float("nan"), float("inf"), -100.1)
    },
    "the log-probabilities of a long prompt": (
        {"logprobs": 20, "prompt_logprobs": True, "prompt": [1] * 12_000},
        "of 12000 tokens",
    ),
    "a grammar where none is taken": ({"grammar": pb.Grammar(text="{}")}, "--masks"),
    "a penalty where none is taken": ({"presence_penalty": 1.0}, "--masks"),
    "log-probabilities where none are told": ({"logprobs": 0}, "--masks"),
}
"""What is wrong with an opening, and what the refusal names. More: tests/grpc_comm/test_wire.py"""

OTHER_OPENINGS: dict[str, tuple[dict[str, Any], str]] = {
    "no protocol": ({"protocol_version": 0}, "protocol 0"),
    "an old protocol": (
        {"protocol_version": 2},
        "protocol 2, this side 3: install the same version of Outrider on both",
    ),
    "another protocol": ({"protocol_version": 2**32 - 1}, f"protocol {2**32 - 1}"),
    "another tokenizer": ({"tokenizer_fingerprint": "t1", "model_fingerprint": "m1"}, "tokenizer"),
    "another model": ({"model_fingerprint": "m1"}, "model"),
}
"""What does not go with this target."""


BAD_REQUESTS: dict[str, tuple[pb.ClientMessage, str]] = {
    "nodes without parents": (chain_of(parents=[]), "parent"),
    "an id beyond the vocabulary": (chain_of(tokens=[4, VOCABULARY]), "vocabulary"),
    "the greatest id": (chain_of(tokens=[4, 2**32 - 1]), "vocabulary"),
    "a text without end": (decode_to(2**32 - 1), "50000"),
    "a text that ended before it began": (decode_to(0), "length"),
    "more tokens than there are": (pb.ClientMessage(ack=pb.Ack(length=4)), "4 tokens"),
    "the most tokens": (pb.ClientMessage(ack=pb.Ack(length=2**32 - 1)), "4294967295 tokens"),
    "another opening": (opening(), "twice"),
    "a resumption": (pb.ClientMessage(resume=pb.Resume(session_id="12345678")), "twice"),
    "nothing": (pb.ClientMessage(), "empty"),
}
"""What is wrong within a session, and what the refusal names."""


REFUSED: dict[str, tuple[list[pb.ClientMessage], grpc.StatusCode, str]] = {
    "nodes before a session": ([chain_of()], CODES.INVALID_ARGUMENT, "first"),
    "nothing before a session": ([pb.ClientMessage()], CODES.INVALID_ARGUMENT, "first"),
    **{
        name: ([opening(**changes)], CODES.FAILED_PRECONDITION, named)
        for name, (changes, named) in OTHER_OPENINGS.items()
    },
    **{
        name: ([opening(**changes)], CODES.INVALID_ARGUMENT, named)
        for name, (changes, named) in BAD_OPENINGS.items()
    },
    **{
        f"in a session: {name}": ([opening(), message], CODES.INVALID_ARGUMENT, named)
        for name, (message, named) in BAD_REQUESTS.items()
    },
}


@pytest.mark.parametrize("refused", REFUSED)
def test_what_cannot_be_served_is_refused_by_name(refused: str, served: BackgroundServer) -> None:
    messages, code, named = REFUSED[refused]
    said = say(served.address, [*messages, decode_to(5)])
    said.check(code, named)
    assert not said.tokens
    assert len(said.answers) < len(messages)  # that a session is open, at most


HINTS: dict[str, pb.ClientMessage] = {
    "below a token that is not there yet": chain_of(base=2**32 - 1),
    "below the prompt's first token": chain_of(base=0),
    "the same number twice": chain_of(),
    "siblings alike": chain_of(tokens=[4, 4], parents=[0, 0]),
    "below a node that never was": chain_of(first=50, parents=[40, 1]),
    "a thousand of them": chain_of(range(4, 1_028)),
    "a thousand siblings": chain_of(range(1_000), parents=[0] * 1_000),
    "to go where the text is not": pb.ClientMessage(go=pb.Go(base=2**32 - 1)),
    "the least credit": decode_to(5, credit=1),
}


@pytest.mark.parametrize("hint", HINTS)
def test_a_hint_of_any_kind_changes_no_token(hint: str, served: BackgroundServer) -> None:
    acknowledged = [pb.ClientMessage(ack=pb.Ack(length=3))] * 2
    messages = [opening(), HINTS[hint], chain_of(), HINTS[hint], *acknowledged]
    said = say(served.address, [*messages, decode_to(5)])
    said.check(CODES.OK)
    assert said.tokens == [4, 5]


def test_a_message_that_is_too_large_is_refused_before_it_is_read(served: BackgroundServer) -> None:
    huge = pb.ClientMessage(open=pb.Open(model="x" * (17 * 2**20)))
    assert say(served.address, [huge]).code is CODES.RESOURCE_EXHAUSTED
    assert say(served.address, [opening(), huge]).code is CODES.RESOURCE_EXHAUSTED


class Flood:
    """Messages, and then one without end. taken: how many of them gRPC took"""

    def __init__(self, *first: pb.ClientMessage, then: pb.ClientMessage) -> None:
        self._first, self._then, self.taken = first, then, 0

    def __iter__(self) -> Iterator[pb.ClientMessage]:
        for message in itertools.chain(self._first, itertools.repeat(self._then)):
            self.taken += 1
            yield message


FLOODS = {
    "candidates": chain_of(range(4, 35)),
    "acknowledgements": pb.ClientMessage(ack=pb.Ack(length=1)),
    "heartbeats": pb.ClientMessage(heartbeat=pb.Heartbeat()),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_is_held_back_at_its_sender(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond what is due it takes what gRPC's flow control holds, some 100 KB."""
    for limit in ("NODES", "BYTES", "MESSAGES"):
        monkeypatch.setattr(f"grpc_comm.server.state.{limit}_PER_SECOND", 1)
    engine, flood = successor_engine(rows=1), Flood(opening(prompt=[3]), then=FLOODS[kind])
    with background(engine) as server, raw_stub(server.address) as stub:
        call = stub.Session(iter(flood))
        assert next(call).HasField("opened")
        eventually(lambda: _still(flood))
        assert flood.taken * (FLOODS[kind].ByteSize() + 5) < 2**20
        call.cancel()
        eventually(lambda: all(session.detached for session in engine.sessions))
    assert engine.free_rows == 1


def test_candidates_that_come_too_fast_or_late_are_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("grpc_comm.server.state.NODES_PER_SECOND", 40)
    metrics = Metrics()
    with background(successor_engine(), metrics=metrics) as server:
        late = chain_of([9, 9], base=1)  # below a token that another one follows
        for candidates in ([late], [chain_of(range(4, 34))] * 2):
            said = say(server.address, [opening(), *candidates, decode_to(6)])
            assert said.code is CODES.OK
    assert dropped(metrics) == {"rate": 30, "late": 2, "cap": 0}


def _still(flood: Flood) -> bool:
    """gRPC takes no more of it."""
    before = flood.taken
    time.sleep(0.3)
    return flood.taken == before


def test_a_neighbour_has_its_turn_beside_a_flood(
    served: BackgroundServer, attacked: Attacked
) -> None:
    with raw_stub(served.address) as stub:
        call = stub.Session(iter(Flood(opening(), decode_to(40_000), then=chain_of())))
        next(call)
        for _ in range(5):
            attacked.neighbour.goes_on()
        call.cancel()


def test_a_call_that_never_opens_a_session_is_ended() -> None:
    with impatient() as server, raw_stub(server.address) as stub:
        Raw(stub).ending().check(CODES.NOT_FOUND, "no message for")


@pytest.mark.parametrize(
    "how_far", ["a session and silence", "half a message", "a message in a thousand pieces"]
)
def test_a_peer_that_dawdles_loses_its_call(how_far: str) -> None:
    with impatient() as server, closing(RawPeer(server.address)) as peer:
        peer.greet()
        peer.call()
        if how_far == "a session and silence":
            peer.send(opening().SerializeToString())
        else:
            peer.send(b"\x0a", announced=1000)
            for _ in range(20 if "pieces" in how_far else 0):
                time.sleep(0.05)
                peer.socket.sendall(frame(0, 0, 1, b"x"))
        assert peer.ended()


def test_connections_that_are_left_half_open_cost_nobody_anything(served: BackgroundServer) -> None:
    peers = [RawPeer(served.address) for _ in range(100)]
    for number, peer in enumerate(peers):
        if number % 2:
            peer.greet()
        if number % 4 == 3:
            peer.call()
    assert say(served.address, [opening(), decode_to(5)]).code is CODES.OK
    for peer in peers:
        peer.close()


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0" * 4096,
        b"\xff" * 4096,
    ],
)
def test_what_is_not_http_2_is_hung_up_on(words: bytes, served: BackgroundServer) -> None:
    with closing(RawPeer(served.address)) as peer:
        peer.socket.sendall(words)
        assert peer.ended()


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
@settings(max_examples=examples(20), suppress_health_check=list(HealthCheck))
def test_frames_that_no_library_sends_end_their_connection_at_most(
    attacked: Attacked, frames: list[Any]
) -> None:
    with closing(RawPeer(attacked.server.address)) as peer:
        peer.greet()
        peer.call()
        for one in frames:
            try:
                peer.socket.sendall(one if isinstance(one, bytes) else frame(*one))
            except OSError:  # hung up on
                return


def test_a_client_that_reads_nothing_does_not_keep_its_row() -> None:
    with impatient(3.0) as server, deaf(server.address), raw_stub(server.address) as stub:
        stream, alive = Raw(stub, opening(), decode_to(5)), threading.Event()
        beats = threading.Thread(target=lambda: beat(stream, alive))
        beats.start()
        stream.said().check(CODES.OK)
        alive.set()
        beats.join()


def beat(stream: Raw, over: threading.Event) -> None:
    while not over.wait(0.1):
        stream.send(pb.ClientMessage(heartbeat=pb.Heartbeat()))


def test_a_client_that_reads_nothing_does_not_keep_the_target_from_ending() -> None:
    engine = successor_engine(rows=1)
    with background(engine, lease_seconds=60.0) as server, deaf(server.address):
        eventually(lambda: bool(engine.sessions))
        ending = threading.Thread(target=server.stop, args=(0.5,), daemon=True)
        ending.start()
        ending.join(WAIT)
        assert not ending.is_alive()
    assert engine.free_rows == 1


def test_a_fault_of_the_target_says_its_kind_and_no_more(
    served: BackgroundServer, caplog: pytest.LogCaptureFixture
) -> None:
    said = say(served.address, [opening(prompt=[1, FAULTY]), decode_to(5)])
    assert (said.code, said.details) == (CODES.INTERNAL, "a fault in the target: RuntimeError")
    assert "in choose" in caplog.text  # the log has its traceback


NAMES = [
    "../../etc/passwd",
    "/etc/passwd",
    "https://example.com/x",
    "successor/../other",
    "other\0",
    "OTHER",
    "x" * 10_000,
    "\u202eother",
]


@pytest.mark.parametrize("name", NAMES)
def test_only_a_listed_name_reaches_a_loader(name: str, served: BackgroundServer) -> None:
    with raw_stub(served.address) as stub, pytest.raises(grpc.RpcError) as refusal:
        stub.Describe(pb.DescribeRequest(model=name), timeout=WAIT)
    assert refusal.value.code() is CODES.INVALID_ARGUMENT
    assert len(refusal.value.details() or "") < 300
    assert say(served.address, [opening(model=name)]).code is CODES.INVALID_ARGUMENT
    assert LOADED == []


def test_the_log_holds_no_token_of_a_prompt_or_a_tree_even_at_its_most_talkative(
    served: BackgroundServer, caplog: pytest.LogCaptureFixture
) -> None:
    secret = [3_111, 3_222, 3_333]
    hint = chain_of([3_334, 3_444])
    wrong = chain_of([3_444, VOCABULARY])
    waiting = decode_to(6, pace=pb.Decode.WAIT)
    go = pb.ClientMessage(go=pb.Go(base=2))
    with caplog.at_level(logging.DEBUG):
        say(served.address, [opening(prompt=secret), hint, decode_to(6)])
        say(served.address, [opening(prompt=secret), wrong])
        say(served.address, [opening(prompt=secret), waiting, chain_of([FAULTY]), go])
        say(served.address, [opening(prompt=[*secret, 5_555])])
        with grpc.insecure_channel(str(served.address)) as channel:
            call: Any = channel.stream_stream(SESSION)
            cut = opening(prompt=secret).SerializeToString()[:-1]
            status(call(iter([cut]), timeout=WAIT))
    assert "a session failed" in caplog.text
    logged = "\n".join(
        record.getMessage() + str(record.exc_text or "") for record in caplog.records
    )
    assert not [token for token in (*secret, 3_444, 5_555) if re.search(rf"\b{token}\b", logged)]
