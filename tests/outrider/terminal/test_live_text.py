"""Messages stand before or below a text on a terminal, and never within it."""

from __future__ import annotations

from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from inference.command import say
from inference.proposer import MODEL
from outrider.terminal.live_text import LiveText, in_colour
from outrider.text.pieces import Piece
from tests.support.commands import Terminal


def test_a_message_stands_below_a_status_and_behind_a_text(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal, LiveText(coloured=False) as show:
        assert terminal.shown[0] == "waiting for the first token"
        say("loaded")
        assert terminal.shown[:2] == ["loaded", "waiting for the first token"]
        show(Piece("some\nte", MODEL))
        say("it went away")
        show(Piece("xt"))
        assert terminal.everything == "loaded\nsome\ntext"
    assert terminal.everything == "loaded\nsome\ntext\nit went away"
    monkeypatch.setenv("TERM", "dumb")  # it cannot move its cursor
    with Terminal() as dumb, LiveText(coloured=False) as show:
        show(Piece("a te", MODEL))
        say("it went away")
        show(Piece("xt", MODEL))
    assert dumb.everything == "a text\nit went away"


def test_what_is_no_terminal_is_told_at_once_unless_both_streams_are_one_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with LiveText(coloured=False) as show:
        show(Piece("te", MODEL))
        say("it went away")
        assert capsys.readouterr() == ("te", "it went away\n")
        show(Piece("xt", MODEL))
    assert capsys.readouterr() == ("xt\n", "")
    file = tmp_path / "both"
    with (
        file.open("w") as both,
        redirect_stdout(both),
        redirect_stderr(both),
        LiveText(coloured=False) as show,
    ):
        show(Piece("te", MODEL))
        say("a token takes 116 ms")
        show(Piece("xt", MODEL))
    assert file.read_text() == "text\na token takes 116 ms\n"


def test_colours_are_for_terminals_that_know_them_and_control_characters_for_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for no_color, kind, coloured in (
        ("", "xterm", True),
        ("", "dumb", False),
        ("1", "xterm", False),
    ):
        monkeypatch.setenv("NO_COLOR", no_color)
        monkeypatch.setenv("TERM", kind)
        with Terminal():
            assert in_colour() == coloured
        assert not in_colour()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for coloured in (False, True):
        LiveText(coloured)(Piece("a\x1b[2J", MODEL))
        shown = capsys.readouterr().out
        assert "\x1b[2J" not in shown
        assert coloured or shown == "a [2J"
