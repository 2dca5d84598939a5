"""A target among many clients: a fault of one ends only its own session."""

from __future__ import annotations

import signal
import socket
import time
from contextlib import ExitStack

import pytest

from grpc_comm.client.connection import connect
from grpc_comm.security import SecurityOptions
from grpc_comm.server.server import BackgroundServer
from inference.errors import OutriderError, Unavailable
from inference.order import Decode
from inference.sampling import SamplingParams
from tests.support.hand_streams import left_open
from tests.support.hostile import deaf
from tests.support.wire_fixtures import (
    FAULTY,
    WAIT,
    free_port,
    news,
    opened,
    process,
    rest,
)

GREEDY = SamplingParams()


def test_an_address_without_a_target_is_unavailable_in_words_within_the_deadline() -> None:
    insecure = SecurityOptions(insecure=True)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nobody, other = f"127.0.0.1:{free_port()}", f"127.0.0.1:{silent.getsockname()[1]}"
        for address, shown in ((nobody, "refused"), (other, ""), ("no-such-host.invalid:1", "")):
            seconds = 0.3 if address == other else WAIT
            with pytest.raises(Unavailable, match=f"{address}.*{shown}"):
                connect(address, security=insecure, timeout=seconds)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_told_to_stop_ends_its_sessions_and_exits_cleanly(number: signal.Signals) -> None:
    with process() as (server, address), connect(str(address)) as connection:
        session = opened(connection)
        session.decode(Decode(40_000))
        came = list(news(session).tokens)
        server.send_signal(number)
        came += rest(session)
        assert came == list(range(4, 4 + len(came)))
        session.close()
        assert server.wait(WAIT) == 0


def test_a_session_of_a_closed_connection_says_so(server: BackgroundServer) -> None:
    connection = connect(str(server.address))
    connection.close()
    with pytest.raises(Unavailable, match="is closed"):
        connection.session().open([1], GREEDY)


def test_a_fault_of_the_target_is_logged_with_its_traceback(
    server: BackgroundServer, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(str(server.address)) as connection:
        session = connection.session()
        session.open([1, FAULTY, 2], SamplingParams())
        session.decode(Decode(9))
        with pytest.raises(OutriderError, match="RuntimeError"):
            rest(session)
    assert "in choose" in caplog.text


SETTLE = 0.2


@pytest.mark.parametrize("asks", [False, True])
def test_clients_that_go_while_they_are_told_to_leave_no_exception_on_stderr(asks: bool) -> None:
    with process() as (target, address), ExitStack() as clients:
        peers = [clients.enter_context(deaf(address, asks=asks)) for _ in range(2)]
        time.sleep(SETTLE)
        target.send_signal(signal.SIGTERM)
        time.sleep(SETTLE)
        for peer in peers:
            peer.close()
        _, said = target.communicate(timeout=WAIT)
    assert (target.returncode, said) == (0, "")


def test_clients_that_leave_when_told_to_leave_no_exception_on_stderr() -> None:
    with process() as (target, address):
        with left_open(address), left_open(address):
            target.send_signal(signal.SIGTERM)
            time.sleep(SETTLE)
        _, said = target.communicate(timeout=WAIT)
    assert (target.returncode, said) == (0, "")
