"""What a service manager is told, over a real socket."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from outrider.target.observing import notify


def test_states_come_as_one_datagram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "manager"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "manager"))
        notify("READY=1", "STATUS=serving")
        assert manager.recv(100) == b"READY=1\nSTATUS=serving"


def test_an_abstract_socket_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0outrider-test-notify")
        monkeypatch.setenv("NOTIFY_SOCKET", "@outrider-test-notify")
        notify("STOPPING=1")
        assert manager.recv(100) == b"STOPPING=1"


def test_a_manager_that_is_gone_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    notify("READY=1")
    assert "READY=1" in capsys.readouterr().err
