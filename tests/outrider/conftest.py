"""Fixtures of this room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from grpc_comm.server.server import BackgroundServer
from outrider.target.target import load_target
from tests.support.commands import Terminal


@pytest.fixture(scope="module")
def port(request: pytest.FixtureRequest) -> Iterator[str]:
    """The port of a server of the role that the file's SERVED is."""
    with BackgroundServer(load_target(request.module.SERVED)) as server:
        yield str(server.address.port)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return Terminal()
