"""A target with the embedded pair, and a server in front of it, for the tests of this room."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import uvicorn

from grpc_comm.server.server import BackgroundServer
from grpc_comm.transport import Address
from outrider.endpoint.access import allowed_hosts
from outrider.endpoint.run import create_app, http_config, listening
from outrider.endpoint.target_manager import TargetManager
from outrider.options.roles import ServeRole, TargetRole
from outrider.target.target import load_target
from outrider.terminal.live_text import silent
from outrider.text.completion import Request
from tests.support.wire_fixtures import WAIT


@contextmanager
def http_server(
    manager: TargetManager,
    keys: tuple[str, ...] = (),
    admin_keys: tuple[str, ...] = (),
    names: tuple[str, ...] = (),
    connections: int = 512,
) -> Iterator[str]:
    """Serve a manager on a free port of this machine; yields the address as http://HOST:PORT.

    The manager stays open.
    """
    app = create_app(manager, keys, admin_keys=admin_keys, hosts=allowed_hosts("127.0.0.1", names))
    bound = listening(Address("127.0.0.1", 0))
    bound.listen()  # a request may come before the thread runs
    server = uvicorn.Server(http_config(app, connections, lifespan="off"))
    thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        bound.close()


@contextmanager
def sent(server: str, *parts: bytes) -> Iterator[socket.socket]:
    """A connection over which these bytes were sent."""
    host, port = server.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=WAIT) as connection:
        for part in parts:
            connection.sendall(part)
        yield connection


def until_closed(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    came = b""
    with suppress(ConnectionResetError):
        while chunk := connection.recv(65536):
            came += chunk
    return came


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    """The address of a target with eight rows."""
    with BackgroundServer(load_target(TargetRole(port=0, batch=8))) as server:
        yield str(server.address)


@pytest.fixture(scope="module")
def manager(target: str) -> Iterator[TargetManager]:
    opened = TargetManager(ServeRole(target_host=target, batch=2, most_texts=40))
    opened.open()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def server(manager: TargetManager) -> Iterator[str]:
    with http_server(manager) as address:
        yield address


@pytest.fixture(scope="module")
def own_text(manager: TargetManager) -> Callable[..., str]:
    """The target's own text, made without any draft."""
    assert manager.texts is not None
    client = manager.texts.client

    def make(prompt: str, tokens: int, temperature: float = 0.0, seed: int = 0) -> str:
        from outrider.text.prompts import Parameters, make_request

        given = Parameters(tokens, temperature, seed=seed)
        request: Request = make_request(client, prompt, given)
        return client.complete(request, silent, threading.Event(), alone=True).text

    return make


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.touch(mode=0o600)
    path.write_text("# alice\nalice-0123456789abcdef\n", encoding="utf-8")
    return path
