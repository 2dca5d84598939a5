"""Connections that never finish a request are closed, and there are only so many of them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import httpx
import pytest

from grpc_comm.client.connection import Connection
from outrider.endpoint import server as limits
from outrider.endpoint.run import SERVING
from outrider.endpoint.server import SPARE, bounded
from outrider.endpoint.target_manager import TargetManager
from tests.outrider.endpoint.conftest import http_server, sent, until_closed
from tests.support.refusals import assert_refused
from tests.support.wire_fixtures import WAIT, free_port

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n"
WHOLE = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "part",
    [b"", HEAD[:20], HEAD, HEAD + b"{", WHOLE + HEAD[:20]],
    ids=["nothing", "half a head", "a head", "half a body", "half a second head"],
)
def test_a_request_that_does_not_come_ends_its_connection(
    server: str, part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HEAD_SECONDS", "BODY_SECONDS"):
        monkeypatch.setattr(limits, name, 0.2)
    with sent(server, part) as connection:
        came = until_closed(connection)
    assert came.startswith(b"HTTP/1.1 200") is (part[:3] == b"GET")


def test_an_answer_may_take_longer_than_its_request(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, gate = 2.0, threading.Event()

    monkeypatch.setattr(Connection, "probe", lambda *_given: gate.wait(WAIT))
    monkeypatch.setattr(limits, "HEAD_SECONDS", seconds)
    with sent(server, WHOLE.replace(b"version", b"health")) as connection:
        time.sleep(seconds + 0.5)
        gate.set()
        assert connection.recv(16).startswith(b"HTTP/1.1 200")


def test_half_open_connections_make_room_for_who_asks(
    manager: TargetManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEAD_SECONDS", 2 * WAIT)  # time closes none of them
    with http_server(manager, connections=4) as address, ExitStack() as stack:
        idle = [stack.enter_context(sent(address, HEAD[:20])) for _ in range(12)]
        assert httpx.get(f"{address}/version", timeout=WAIT).is_success
        for connection in idle[:8]:
            assert until_closed(connection) == b""


def test_when_all_connections_are_answered_a_further_one_is_told_to_come_again(
    manager: TargetManager,
) -> None:
    body = b'{"prompt": "def main():", "max_tokens": 900, "stream": true}'
    whole = HEAD.replace(b"99", b"%d\r\nContent-Type: application/json" % len(body)) + body
    with http_server(manager, connections=2) as address, ExitStack() as stack:
        for _ in range(2):
            busy = stack.enter_context(sent(address, whole))
            assert busy.recv(16).startswith(b"HTTP/1.1 200")
        answer = httpx.get(f"{address}/version", timeout=WAIT)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "too_many_connections"


def test_a_connection_serves_one_request_after_another(server: str) -> None:
    with sent(server, WHOLE * 3) as connection:
        connection.shutdown(socket.SHUT_WR)
        assert until_closed(connection).count(b"HTTP/1.1 200") == 3


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits another process's files")
def test_a_server_without_a_free_descriptor_recovers_and_its_log_stays_short() -> None:
    from resource import RLIMIT_NOFILE, prlimit

    options = f"serve --port {free_port()} --http_port 0 --draft none".split()
    command = [sys.executable, "-m", "outrider", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        line = next(line for line in lines if line.startswith(SERVING))
        server = line.removeprefix(SERVING).split("/v1")[0]
        files = len(os.listdir(f"/proc/{process.pid}/fd"))
        prlimit(process.pid, RLIMIT_NOFILE, (files + 6, prlimit(process.pid, RLIMIT_NOFILE)[1]))
        with ExitStack() as stack:
            for _ in range(40):
                stack.enter_context(sent(server, HEAD[:20]))
            assert "Too many open files" in next(lines)
        assert httpx.get(f"{server}/version", timeout=WAIT).is_success
        process.terminate()
        assert len(list(lines)) < 5


def test_connections_leave_descriptors_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    from resource import RLIM_INFINITY

    used = len(os.listdir("/dev/fd"))
    room: dict[int, int] = {used + 1024: 512, used + SPARE + 100: 100}
    limit = list[tuple[int, int]]()
    monkeypatch.setattr("resource.setrlimit", lambda _kind, pair: limit.append(pair))
    for hard, connections in room.items():
        monkeypatch.setattr("resource.getrlimit", lambda _kind, hard=hard: (20, hard))
        assert abs(bounded(512) - connections) < 20
        assert limit[-1] == (hard, hard)
    monkeypatch.setattr("resource.getrlimit", lambda _kind: (RLIM_INFINITY, RLIM_INFINITY))
    assert (bounded(512), len(limit)) == (512, 2), "nothing is raised that has no limit"
    monkeypatch.setattr("resource.getrlimit", lambda _kind: (20, used + SPARE))
    assert_refused(lambda: bounded(512), ["ulimit -n"])
