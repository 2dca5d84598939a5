"""A session's client looks for its target again, as long as patience lasts or until it is closed,
and abandons one that breaks the protocol. What becomes of texts when a link or a target fails is
simulated (tests/simulate/test_scenes.py).
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import pytest

from grpc_comm import translate
from grpc_comm.client import connection as client
from grpc_comm.client import patience as bounds
from grpc_comm.client.connection import Connection, connect
from grpc_comm.client.patience import MAX_QUEUE_SECONDS, Patience, ProgressClock
from grpc_comm.client.remote_session import RemoteSession
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.proto import verifier_pb2_grpc
from inference.errors import Mismatch, OutriderError, Unavailable
from inference.order import MAX_CREDIT, Decode
from inference.sampling import SamplingParams
from inference.text_log import MAX_UNREAD
from outrider.measure.link import emulated_link
from tests.support.clock import Clock
from tests.support.wire_fixtures import (
    WAIT,
    assert_serves,
    background,
    candidates,
    describe,
    eventually,
    opened,
    rest,
    successor_engine,
    until_it_fails,
)

NEVER = 3600.0
"""Seconds of patience that no test waits for."""


def test_a_stream_that_a_real_link_cuts_goes_on_where_it_was() -> None:
    notices = list[str]()
    with (
        background(successor_engine()) as server,
        emulated_link(str(server.address)) as link,
        connect(link.address, patience=Patience(WAIT, notices.append)) as connection,
    ):
        session = opened(connection)
        first = session.stream
        link.cut()
        eventually(lambda: session.lost or bool(session.traffic.resumes))
        session.decode(Decode(40))
        assert rest(session) == [*range(4, 41)]
        assert (session.traffic.resumes, session.traffic.reopenings) == (1, 0)
        assert session.stream > first
        traffic = session.traffic
        assert min(traffic.messages_up, traffic.messages_down) > 1
        assert min(traffic.bytes_up, traffic.bytes_down) > 10
    assert ["reconnecting" in notices[0], "connected" in notices[1]] == [True, True]


@contextmanager
def searching(silent: bool) -> Iterator[tuple[Connection, RemoteSession]]:
    """A client that looks for a target that is gone, or that listens and says nothing."""
    notices: list[str] = []
    with ExitStack() as stack:
        server = stack.enter_context(background(successor_engine()))
        connection = stack.enter_context(
            connect(str(server.address), patience=Patience(NEVER, notices.append))
        )
        session = opened(connection)
        server.stop()
        if silent:
            stack.enter_context(socket.create_server(server.address))
        eventually(lambda: bool(notices))
        time.sleep(0.3)  # into the first or the second attempt
        yield connection, session


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("by", ["session", "connection"])
def test_closing_ends_the_search_for_a_target(by: str, silent: bool) -> None:
    with searching(silent) as (connection, session):
        assert session.lost
        session.close() if by == "session" else connection.close()
        with pytest.raises(Unavailable):
            until_it_fails(session)
        assert not session.lost


def test_a_session_that_was_closed_while_it_searched_opens_again() -> None:
    with (
        background(successor_engine()) as server,
        connect(str(server.address), patience=Patience(NEVER)) as connection,
    ):
        session = connection.session()
        for _ in range(5):
            session.open([1, 2, 3], SamplingParams())
            assert_serves(session)
            session.decode(Decode(40_000))
            server.stop()
            session.close()
            with pytest.raises(Unavailable):
                until_it_fails(session)
            server = background(successor_engine(), address=server.address)
        session.open([1, 2, 3], SamplingParams())
        assert_serves(session)
        assert (session.traffic.resumes, session.traffic.reopenings) == (0, 0)
        server.stop()


BORNE = Patience(30.0)


def test_only_seconds_in_which_a_token_is_owed_count() -> None:
    at = Clock(0.0)
    clock = ProgressClock(BORNE, at)
    clock.note_opened()
    at.now = 2 * BORNE.progress
    assert not clock.advance(at.now, owes_token=False, opened=True)
    at.now += BORNE.progress
    assert not clock.advance(at.now, owes_token=True, opened=True)
    clock.restart()
    at.now += BORNE.progress + 1
    said = clock.advance(at.now, owes_token=True, opened=True)
    assert said == f"has generated no token for {BORNE.progress:.0f} s"
    assert clock.stalled
    assert (Patience(0.001).progress, Patience().progress) == (60, 10 * Patience().silence)


def test_a_target_that_says_nothing_is_left_and_then_has_its_time_of_silence_again() -> None:
    at = Clock(BORNE.silence)
    clock = ProgressClock(BORNE, at)
    assert not clock.advance(0.0, owes_token=False, opened=True)
    assert "sent nothing for" in clock.advance(-0.1, owes_token=False, opened=True)
    at.now += BORNE.progress + 1
    assert clock.advance(at.now, owes_token=True, opened=True)
    at.now += BORNE.silence
    assert not clock.advance(at.now, owes_token=True, opened=True)
    at.now += 1
    assert clock.advance(at.now, owes_token=True, opened=True)
    clock.restart()
    assert not clock.stalled


@pytest.mark.parametrize("evicted", [False, True])
def test_a_line_may_be_long_and_who_comes_out_of_it_is_not_late(evicted: bool) -> None:
    at = Clock(0.0)
    clock = ProgressClock(BORNE, at)
    clock.evicted = evicted
    at.now = MAX_QUEUE_SECONDS
    assert not clock.advance(at.now, owes_token=True, opened=evicted)
    clock.note_opened()
    assert not clock.advance(at.now, owes_token=True, opened=True)
    at.now += BORNE.silence + 1
    assert clock.advance(at.now, owes_token=True, opened=True)


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
    patience: Patience,
    answers: Sequence[pb.ServerMessage],
    forever: Sequence[pb.ServerMessage] = (),
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
    with asked(Patience(patience), ROGUES[said]) as session, named:
        until_it_fails(session)


def test_a_target_that_goes_away_cannot_write_to_the_terminal() -> None:
    notices: list[str] = []
    words = "\x1b[2J\x07bye\nnow"
    away = pb.ServerMessage(go_away=pb.GoAway(reason=words))
    said = [OPENED, away, tokens(3, 4, end=pb.Tokens.DRAINED)]
    patience = Patience(0.5, notices.append)
    with asked(patience, said) as session, pytest.raises(OutriderError):
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
    with asked(Patience(0.0), [pb.ServerMessage(opened=opened), wild]) as session:
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
    with asked(Patience(seconds), answers, forever) as session:
        if "has drained" in said and not seconds:
            return  # the text ends there
        with pytest.raises(OutriderError):
            until_it_fails(session)
