"""Fixtures of this room."""

from __future__ import annotations

import os

import pytest

from tests.support.terminal import Terminal


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    screen = Terminal(20, 6)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(
        "shutil.get_terminal_size", lambda: os.terminal_size((screen.width, screen.height))
    )
    return screen
