"""A session's client looks for its target again, as long as patience lasts or until it is closed.
What becomes of texts when a link or a target fails is simulated (tests/simulate/test_scenes.py).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from grpc_comm.client.connection import Connection, connect
from grpc_comm.client.patience import MAX_QUEUE_SECONDS, Patience, ProgressClock
from grpc_comm.client.remote_session import RemoteSession
from inference.errors import Unavailable
from inference.order import Decode
from inference.sampling import SamplingParams
from outrider.measure.link import emulated_link
from tests.support.clock import Clock
from tests.support.wire_fixtures import (
    WAIT,
    assert_serves,
    background,
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
