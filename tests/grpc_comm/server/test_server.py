"""A target among many clients: what one of them does wrong, or suffers, ends its own session and
nothing else.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from grpc_comm.client.connection import connect
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.security import SecurityOptions
from grpc_comm.server.server import BackgroundServer
from inference.decode import TargetSession
from inference.engine.local_session import LocalSession
from inference.errors import Busy, InvalidRequest, OutriderError, Unavailable
from inference.order import Decode, Pace
from inference.sampling import SamplingParams
from tests.support import pairs
from tests.support.drafts import proposers_of, text_of
from tests.support.repository import ROOT
from tests.support.wire_fixtures import (
    FAULTY,
    LOOPBACK,
    VOCABULARY,
    WAIT,
    Successor,
    assert_serves,
    background,
    candidates,
    connected,
    decode_to,
    free_port,
    news,
    opened,
    opening,
    process,
    raw_stub,
    rest,
    status,
    successor_engine,
    until_it_fails,
)

GREEDY = SamplingParams()


ENDINGS: dict[str, list[pb.ClientMessage]] = {
    "end of messages": [opening()],
    "close": [opening(), pb.ClientMessage(close=pb.Close()), decode_to(9)],
    "refusal": [opening(), decode_to(0)],
    "fault": [opening(prompt=[1, FAULTY]), decode_to(9)],
    "fault in prefill": [opening(prompt=[FAULTY, 2])],
    "nothing": [],
}


@pytest.mark.parametrize("name", ENDINGS)
def test_however_a_stream_ends_its_row_is_given_back(name: str) -> None:
    with (
        background(successor_engine(rows=1)) as server,
        raw_stub(server.address) as stub,
        connect(str(server.address)) as connection,
    ):
        for _ in range(3):
            status(stub.Session(iter(ENDINGS[name]), timeout=WAIT))
        opened(connection).close()


@pytest.fixture
def one_row() -> Iterator[tuple[Successor, BackgroundServer]]:
    """A server of one row, whose model can be held up."""
    engine = successor_engine(rows=1)
    assert isinstance(engine.model, Successor)
    with background(engine) as server:
        yield engine.model, server
        engine.model.gate.set()


@pytest.mark.parametrize("by", ["session", "connection"])
def test_the_row_of_a_client_that_leaves_in_the_middle_of_a_forward_is_given_back(
    one_row: tuple[Successor, BackgroundServer], by: str
) -> None:
    model, server = one_row
    leaving = connect(str(server.address))
    session = opened(leaving)
    model.entered.clear()
    model.gate.clear()
    session.decode(Decode(9))
    assert model.entered.wait(WAIT)
    session.close() if by == "session" else leaving.close()
    with pytest.raises(Unavailable):
        until_it_fails(session)
    model.gate.set()
    with connect(str(server.address)) as connection:
        assert_serves(opened(connection))
    leaving.close()


def test_the_row_of_a_killed_client_is_given_back(
    one_row: tuple[Successor, BackgroundServer],
) -> None:
    _, server = one_row
    program = (
        "import sys; from grpc_comm.client.connection import connect\n"
        "from inference.sampling import SamplingParams\n"
        "session = connect(sys.argv[1]).session(); session.open([1, 2, 3], SamplingParams())\n"
        "while not session.is_open: session.receive(1)\n"
        "print('opened', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(server.address)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "opened\n"
        client.kill()
        with connect(str(server.address)) as connection:
            assert_serves(opened(connection))


def test_closing_stops_a_target_that_goes_on(one_row: tuple[Successor, BackgroundServer]) -> None:
    model, server = one_row
    with connect(str(server.address)) as connection:
        session = opened(connection)
        session.decode(Decode(40_000))
        assert news(session).tokens[0] == 4
        session.close()
        assert_serves(opened(connection))
        assert len(model.calls) < 40_000
        with pytest.raises(Unavailable, match="closed"):
            until_it_fails(session)


def test_sessions_under_way_interleave(server: BackgroundServer) -> None:
    with connect(str(server.address)) as connection:
        busy, other = opened(connection), opened(connection)
        busy.decode(Decode(40_000))
        news(busy)
        assert_serves(other)
        assert busy.traffic.forwards < 40_000
        other.open([5] * 49_000, GREEDY)
        made = 0
        while made < 20:
            made += len(news(busy).tokens)
        assert not other.is_open
        other.close()
        busy.close()


def speculated(session: TargetSession, number: int) -> list[int]:
    """The text of one of eight clients, each with its own prompt, seed, pace and draft."""
    params = SamplingParams(temperature=(0.0, 0.7, 1.0)[number % 3], seed=number)
    pace = Pace(number % 2)
    proposers = proposers_of(("close", "unrelated", "none")[number % 3], pace)
    return text_of([7, number, 30 + number], params, session, Decode(19, pace=pace), proposers)


def test_eight_clients_at_two_rows_get_the_texts_that_each_gets_alone() -> None:
    engine = pairs.engine(pairs.decoder(1), rows=2)
    alone = [speculated(LocalSession(engine), number) for number in range(8)]
    with connected(engine) as connection, ThreadPoolExecutor(8) as clients:
        together = [clients.submit(speculated, connection.session(), number) for number in range(8)]
        assert [text.result(WAIT) for text in together] == alone
    assert engine.free_rows == 2


def test_a_full_line_is_refused_and_the_waiting_one_is_served_later() -> None:
    with connected(successor_engine(rows=1, waiting=1)) as connection:
        first = opened(connection)
        patient, refused = connection.session(), connection.session()
        patient.open([1, 2, 3], GREEDY)
        assert patient.receive(WAIT) is not None  # it is in line
        refused.open([1, 2, 3], GREEDY)
        with pytest.raises(Busy):
            until_it_fails(refused)
        first.close()
        assert_serves(patient)


def test_a_client_that_leaves_the_line_is_forgotten() -> None:
    with connected(successor_engine(rows=1, waiting=2)) as connection:
        first, second, third = opened(connection), connection.session(), connection.session()
        for session in (second, third):
            session.open([1, 2, 3], GREEDY)
            assert session.receive(WAIT) is not None
        second.close()
        first.close()
        assert_serves(third)


def test_a_port_where_nobody_listens_is_unavailable_in_words() -> None:
    port = free_port()
    with pytest.raises(Unavailable, match=f"127.0.0.1:{port} .*refused"):
        connect(f"127.0.0.1:{port}")


def test_a_port_where_something_else_listens_is_unavailable_within_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(Unavailable, match=f"127.0.0.1:{port}"):
            connect(f"127.0.0.1:{port}", timeout=0.3)


def test_a_host_that_does_not_exist_is_unavailable_in_words() -> None:
    with pytest.raises(Unavailable, match=r"no-such-host\.invalid:1"):
        connect("no-such-host.invalid:1", security=SecurityOptions(insecure=True))


def test_a_killed_server_fails_the_sessions_of_its_clients() -> None:
    with process() as (server, address), connect(str(address)) as connection:
        idle, busy = opened(connection), opened(connection)
        busy.decode(Decode(40_000))
        news(busy)
        os.kill(server.pid, signal.SIGKILL)
        for session in (idle, busy):
            with pytest.raises(Unavailable, match=f"the target at {address} went away"):
                until_it_fails(session)
            session.close()
        late = connection.session()
        late.open([1], GREEDY)
        with pytest.raises(Unavailable):
            until_it_fails(late)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_told_to_stop_ends_the_session_under_way_and_exits_cleanly(
    number: signal.Signals,
) -> None:
    with process() as (server, address), connect(str(address)) as connection:
        session = opened(connection)
        session.decode(Decode(40_000))
        came = list(news(session).tokens)
        server.send_signal(number)
        came += rest(session)
        assert came == list(range(4, 4 + len(came)))
        session.close()
        assert server.wait(WAIT) == 0


def test_a_server_that_stops_at_once_fails_the_sessions_under_way() -> None:
    server = background(successor_engine())
    with connect(str(server.address)) as connection:
        session = opened(connection)
        server.stop()
        with pytest.raises(Unavailable):
            until_it_fails(session)
    server.stop()


def test_a_session_of_a_closed_connection_says_so(server: BackgroundServer) -> None:
    connection = connect(str(server.address))
    connection.close()
    with pytest.raises(Unavailable, match="is closed"):
        connection.session().open([1], GREEDY)


def test_health_says_serving(server: BackgroundServer) -> None:
    with grpc.insecure_channel(str(server.address)) as channel:
        for service in ("", "outrider.v1.Target"):
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=WAIT
            )
            assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_port_0_becomes_a_port(server: BackgroundServer) -> None:
    assert LOOPBACK.port == 0
    assert server.address.port > 0


def test_a_refused_session_stays_ended(server: BackgroundServer) -> None:
    with connect(str(server.address)) as connection:
        session = opened(connection)
        session.propose(candidates(session, 2, [VOCABULARY]))
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="outside the vocabulary"):
                rest(session)
        assert_serves(opened(connection))


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
