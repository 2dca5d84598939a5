"""A target among many clients: what it cannot read, whom it tells to leave, and its absence."""

from __future__ import annotations

import logging
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from grpc_comm.client.connection import connect
from grpc_comm.observability.metrics import Metrics
from grpc_comm.security import SecurityOptions
from grpc_comm.server.server import BackgroundServer
from inference.errors import Unavailable
from inference.order import Decode
from inference.sampling import SamplingParams
from tests.support.hostile import bearer, deaf, keys_file
from tests.support.wire_fixtures import (
    WAIT,
    background,
    free_port,
    news,
    opened,
    process,
    rest,
    status,
    successor_engine,
)


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
        _, said = server.communicate(timeout=WAIT)
        assert (server.returncode, said) == (0, "")


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


def test_a_session_of_a_closed_connection_says_so(server: BackgroundServer) -> None:
    connection = connect(str(server.address))
    connection.close()
    with pytest.raises(Unavailable, match="is closed"):
        connection.session().open([1], SamplingParams())


METHODS = [
    "/outrider.v1.Target/Describe",
    "/outrider.v1.Target/Session",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
]
MOST_BYTES = 100

CODES = grpc.StatusCode
UNREADABLE = "a message that cannot be read: the client does not speak this protocol"
TOO_LONG = f"a message of {MOST_BYTES + 1} bytes: this key may send {MOST_BYTES} at once"
REFUSED = {
    "no protobuf": (b"\xff" * MOST_BYTES, CODES.INVALID_ARGUMENT, UNREADABLE),
    "longer than the key's": (b"\xff" * (MOST_BYTES + 1), CODES.INVALID_ARGUMENT, TOO_LONG),
    "longer than any": (b"\xff" * 2**20, CODES.RESOURCE_EXHAUSTED, "larger than max"),
}


@pytest.fixture(scope="module")
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, metrics: Metrics
) -> Iterator[BackgroundServer]:
    keys = keys_file(tmp_path_factory.mktemp("keys") / "keys", alice={"message_bytes": MOST_BYTES})
    security = SecurityOptions(keys_file=keys)
    with background(successor_engine(), security=security, metrics=metrics) as server:
        yield server


def rejections(metrics: Metrics) -> float:
    code = CODES.INVALID_ARGUMENT.name
    return metrics.registry.get_sample_value("outrider_rejected_total", {"code": code}) or 0


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("method", METHODS)
def test_a_message_that_is_not_taken_ends_its_call_with_a_listed_code_and_no_error_is_logged(
    method: str,
    kind: str,
    served: BackgroundServer,
    metrics: Metrics,
    caplog: pytest.LogCaptureFixture,
) -> None:
    message, code, words = REFUSED[kind]
    before = rejections(metrics)
    with caplog.at_level(logging.WARNING), grpc.insecure_channel(str(served.address)) as channel:
        call: Any = channel.stream_stream(method)
        answered, details = status(call(iter([message]), metadata=bearer("alice"), timeout=WAIT))
    assert (answered, words in details) == (code, True), details
    assert "grpc._cython" not in {record.name for record in caplog.records}
    assert rejections(metrics) - before == (code is CODES.INVALID_ARGUMENT)
