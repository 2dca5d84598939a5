"""What goes through an emulated link arrives unchanged and in order until the link is cut."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from inference.errors import Unavailable
from outrider.measure.link import emulated_link
from tests.support.repository import ROOT
from tests.support.wire_fixtures import WAIT, free_port


@pytest.fixture(scope="module")
def echo() -> str:
    """Sends back what it gets, and ends when the client has ended."""

    def answer(connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):  # a link was cut
            while data := connection.recv(65536):
                connection.sendall(data)

    def accept() -> None:
        while True:
            threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=accept, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


def opened(address: str) -> socket.socket:
    host, port = address.split(":")
    connection = socket.create_connection((host, int(port)), timeout=WAIT)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def exchange(connection: socket.socket, data: bytes) -> bytes:
    """Send, and read as much back, or what comes before the end."""
    threading.Thread(target=connection.sendall, args=(data,)).start()
    parts = b""
    while len(parts) < len(data) and (part := connection.recv(len(data) - len(parts))):
        parts += part
    return parts


@pytest.mark.parametrize("delay", [0.0, 2.0])
def test_bytes_arrive_unchanged_and_in_order_also_those_before_the_end(
    echo: str, delay: float
) -> None:
    chance = random.Random(1)
    with (
        emulated_link(echo, delay) as link,
        opened(link.address) as first,
        opened(link.address) as second,
    ):
        for connection in (first, second):
            sent = chance.randbytes(400_000)
            assert exchange(connection, sent) == sent
        for _ in range(50):
            small = chance.randbytes(chance.randint(1, 200))
            assert exchange(first, small) == small
        first.sendall(b"last words")
        first.shutdown(socket.SHUT_WR)
        with first.makefile("rb") as file:
            assert file.read() == b"last words"


def test_a_cut_resets_what_is_open_and_new_connections_work(echo: str) -> None:
    with emulated_link(echo, 1) as link, opened(link.address) as old:
        assert exchange(old, b"before") == b"before"
        link.cut()
        with pytest.raises(ConnectionResetError):
            old.recv(1)
        with opened(link.address) as new:
            assert exchange(new, b"after") == b"after"
    with (
        emulated_link(f"127.0.0.1:{free_port()}") as link,  # where nobody listens
        pytest.raises(ConnectionResetError),
        opened(link.address) as connection,
    ):
        connection.recv(1)


def test_a_link_that_does_not_start_is_an_error(echo: str) -> None:
    with pytest.raises(Unavailable), emulated_link("nowhere"):
        pass
    command = [sys.executable, "-m", "outrider.measure.link", echo, echo, "0"]
    pipe = subprocess.PIPE  # it ends with its input
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        assert "cannot listen" in process.stderr.read()
        assert process.wait(WAIT) == 1
