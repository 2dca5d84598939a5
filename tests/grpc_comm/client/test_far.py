"""What is not read holds the target; a target that breaks the protocol is abandoned."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from grpc_comm import translate
from grpc_comm.client import connection as client
from grpc_comm.client import patience as bounds
from grpc_comm.client.connection import connect
from grpc_comm.client.patience import Patience
from grpc_comm.client.remote_session import RemoteSession
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.proto import verifier_pb2_grpc
from inference.errors import Mismatch, OutriderError
from inference.order import MAX_CREDIT, Decode
from inference.sampling import SamplingParams
from inference.text_log import MAX_UNREAD
from outrider.measure.link import emulated_link
from tests.support.wire_fixtures import (
    WAIT,
    background,
    candidates,
    describe,
    eventually,
    opened,
    rest,
    successor_engine,
    until_it_fails,
)


def test_a_reader_that_stays_behind_holds_the_target() -> None:
    engine = successor_engine()
    with background(engine) as server, connect(str(server.address)) as connection:
        session = opened(connection)
        session.decode(Decode(40_000))
        held = engine.sessions[0]
        eventually(lambda: held.length > 3 + MAX_UNREAD and held.allowed == 0)
        time.sleep(0.1)
        assert held.allowed == 0
        assert held.length <= 3 + MAX_UNREAD + 2 * MAX_CREDIT
        session.receive(WAIT)
        eventually(lambda: held.length > 3 + MAX_UNREAD + 2 * MAX_CREDIT)
        session.close()


def test_candidates_that_the_link_does_not_take_are_dropped() -> None:
    with (
        background(successor_engine()) as server,
        emulated_link(str(server.address)) as link,
        connect(link.address, timeout=WAIT) as connection,
    ):
        session = opened(connection)
        os.kill(link.pid, signal.SIGSTOP)
        for _ in range(100):
            session.propose(candidates(session, 2, range(4, 1_000)))
        assert session.traffic.messages_up < 100
        link.cut()
        os.kill(link.pid, signal.SIGCONT)


PATIENCE = Patience(0.0)


class Rogue(verifier_pb2_grpc.TargetServicer):
    """A target that says what a test wants. forever: again and again after the answers"""

    def __init__(
        self, answers: Sequence[pb.ServerMessage], forever: Sequence[pb.ServerMessage]
    ) -> None:
        self.answers, self.forever = answers, forever

    def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.Description:
        return translate.write_description(describe(successor_engine()), ["successor"])

    def Session(self, requests: Any, context: Any) -> Iterator[pb.ServerMessage]:
        if any(message.HasField("decode") for message in requests):
            yield from self.answers
        while context.is_active():
            yield from self.forever
            time.sleep(0.02)


@contextmanager
def asked(
    answers: Sequence[pb.ServerMessage],
    forever: Sequence[pb.ServerMessage] = (),
    patience: Patience = PATIENCE,
) -> Iterator[RemoteSession]:
    """A session on [1, 2, 3] with such a target, which was asked for a text of 60 tokens."""
    server = grpc.server(ThreadPoolExecutor(9))
    verifier_pb2_grpc.add_TargetServicer_to_server(Rogue(answers, forever), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with connect(address, patience=patience) as connection:
            session = connection.session()
            session.open([1, 2, 3], SamplingParams())
            session.decode(Decode(60))
            yield session
    finally:
        server.stop(None).wait()


def tokens(position: int, *ids: int, **fields: Any) -> pb.ServerMessage:
    return pb.ServerMessage(tokens=pb.Tokens(position=position, ids=ids, **fields))


OPENED = pb.ServerMessage(opened=pb.Opened(session_id="s", length=3, tree_nodes=32))


ROGUES: dict[str, list[pb.ServerMessage]] = {
    "a gap": [OPENED, tokens(5, 6)],
    "tokens before the session is open": [tokens(3, 4)],
    "another prompt": [pb.ServerMessage(opened=pb.Opened(length=2))],
    "more than the prompt": [pb.ServerMessage(opened=pb.Opened(length=4))],
    "an unknown end": [OPENED, tokens(3, 4, end=77)],
    "proposers of other tokens": [OPENED, tokens(3, 4, proposers=b"\0\0")],
    "an empty message": [OPENED, pb.ServerMessage()],
}
"""Others are told apart by what holds them against the text (test_text_copy.py)."""


@pytest.mark.parametrize("said", ROGUES)
@pytest.mark.parametrize("patience", [0.0, WAIT])
def test_a_target_that_says_what_cannot_be_is_named_and_not_believed(
    said: str, patience: float
) -> None:
    named = pytest.raises(Mismatch, match=r"the target at 127\.0\.0\.1:\d+ ")
    with asked(ROGUES[said], patience=Patience(patience)) as session, named:
        until_it_fails(session)


def test_a_target_that_goes_away_cannot_write_to_the_terminal() -> None:
    notices: list[str] = []
    words = "\x1b[2J\x07bye\nnow"
    away = pb.ServerMessage(go_away=pb.GoAway(reason=words))
    said = [OPENED, away, tokens(3, 4, end=pb.Tokens.DRAINED)]
    patience = Patience(0.5, notices.append)
    with asked(said, patience=patience) as session, pytest.raises(OutriderError):
        until_it_fails(session)
    assert "is leaving: ?[2J?bye?now; reconnecting" in notices[0]


def test_numbers_without_sense_do_no_harm() -> None:
    greatest = 2**64 - 1
    wild = tokens(
        3, 4, known=2**32 - 1, held=2**32 - 1, nodes=greatest, model_microseconds=greatest,
        room=2**32 - 1, end=pb.Tokens.LIMIT,
    )  # fmt: skip
    opened = pb.Opened(
        length=3, queue_seconds=float("nan"), prefill_seconds=-1.0, lease_seconds=float("nan"),
        tree_nodes=2**32 - 1, candidates=2**32 - 1,
    )  # fmt: skip
    with asked([pb.ServerMessage(opened=opened), wild]) as session:
        assert rest(session) == [4]
        assert session.room <= session.candidates <= 1024


AWAY = pb.ServerMessage(go_away=pb.GoAway(reason="maintenance"))
TALK = {
    "signs of life before the session is open": ([], [tokens(3)]),
    "signs of life": ([OPENED], [tokens(3)]),
    "one token, then signs of life": ([OPENED, tokens(3, 4)], [tokens(4)]),
    "that it waits for an acknowledgement": ([OPENED], [tokens(3, end=pb.Tokens.CREDIT)]),
    "that the session has no row": ([OPENED], [tokens(3, end=pb.Tokens.EVICTED)]),
    "that the session is open": ([], [OPENED]),
    "that it drains": ([OPENED], [AWAY, tokens(3)]),
    "that it drains, and no sign of life": ([OPENED], [AWAY]),
    "that it has drained": ([OPENED, AWAY, tokens(3, end=pb.Tokens.DRAINED)], [AWAY]),
}


@pytest.mark.parametrize("seconds", [0.0, 0.5])
@pytest.mark.parametrize("said", TALK)
def test_a_target_that_talks_for_ever_is_left(
    said: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "HEARTBEAT_SECONDS", 0.02)
    for name in ("MIN_SILENCE", "MAX_SILENCE", "MIN_PROGRESS_SECONDS", "MAX_QUEUE_SECONDS"):
        monkeypatch.setattr(bounds, name, 0.3)
    monkeypatch.setattr(bounds, "SILENCES", 1)
    answers, forever = TALK[said]
    with asked(answers, forever, Patience(seconds)) as session:
        if "has drained" in said and not seconds:
            return  # the text ends there
        with pytest.raises(OutriderError):
            until_it_fails(session)
