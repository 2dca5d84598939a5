"""Messages stand before or below a text on a terminal, and never within it."""

from __future__ import annotations

from contextlib import nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from inference.command import say
from inference.proposer import MODEL
from outrider.terminal.live_text import LiveText, in_colour
from outrider.text.pieces import Piece
from tests.support.commands import Terminal


def test_a_status_stands_in_place_of_the_text_until_it_begins(terminal: Terminal) -> None:
    with terminal, LiveText(coloured=False) as show:
        assert terminal.shown[0] == "waiting for the first token"
        say("loaded")
        assert terminal.shown[:2] == ["loaded", "waiting for the first token"]
        show(Piece("some\nte", MODEL))
        say("it went away")
        show(Piece("xt"))
        assert terminal.everything == "loaded\nsome\ntext"
    assert terminal.everything == "loaded\nsome\ntext\nit went away"


def test_a_terminal_that_cannot_move_its_cursor_is_told_after_the_text(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with terminal, LiveText(coloured=False) as show:
        show(Piece("a te", MODEL))
        say("it went away")
        show(Piece("xt", MODEL))
    assert terminal.everything == "a text\nit went away"


def test_where_both_streams_are_one_file_what_is_said_stands_behind_the_text(
    tmp_path: Path,
) -> None:
    with (
        (tmp_path / "both").open("w") as both,
        redirect_stdout(both),
        redirect_stderr(both),
        LiveText(coloured=False) as show,
    ):
        show(Piece("te", MODEL))
        say("a token takes 116 ms")
        show(Piece("xt", MODEL))
    assert (tmp_path / "both").read_text() == "text\na token takes 116 ms\n"


@pytest.mark.parametrize(
    ("no_color", "kind", "coloured"),
    [("", "xterm", True), ("", "dumb", False), ("", None, False), ("1", "xterm", False)],
)
def test_colours_are_for_terminals_that_know_them_unless_the_user_says(
    monkeypatch: pytest.MonkeyPatch, no_color: str, kind: str | None, coloured: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", kind or "xterm")
    with Terminal() if kind else nullcontext():
        assert in_colour() == coloured


@pytest.mark.parametrize("coloured", [False, True])
def test_a_terminal_gets_no_control_characters_with_colours_or_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], coloured: bool
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    LiveText(coloured)(Piece("a\x1b[2J", MODEL))
    shown = capsys.readouterr().out
    assert "\x1b[2J" not in shown
    assert coloured or shown == "a [2J"


def test_what_is_no_terminal_is_told_at_once_and_on_stderr_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with LiveText(coloured=False) as show:
        show(Piece("te", MODEL))
        say("it went away")
        assert capsys.readouterr() == ("te", "it went away\n")
        show(Piece("xt", MODEL))
    assert capsys.readouterr() == ("xt\n", "")
