"""What is said while a text is made stands below it on a terminal, and never within it."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack, redirect_stderr, redirect_stdout

import pytest
from rich.cells import cell_len

from inference.command import glance, say
from inference.proposer import MODEL
from outrider.completion import Piece
from outrider.live_text import LiveText

TOKENS = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])|\x1b(.)|(.)", re.DOTALL)


class Terminal:
    """A screen that obeys what a terminal obeys; lines that scroll off the top are kept."""

    encoding = "utf-8"

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.gone: list[str] = []
        self.rows = [[" "] * width for _ in range(height)]
        self.row = self.column = 0
        self.saved = (0, 0)
        self._streams = ExitStack()

    def __enter__(self) -> Terminal:
        """It is stdout and stderr from here on."""
        self._streams.enter_context(redirect_stdout(self))  # type: ignore[type-var]
        self._streams.enter_context(redirect_stderr(self))  # type: ignore[type-var]
        return self

    def __exit__(self, *_error: object) -> None:
        self._streams.close()

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        pass

    def write(self, text: str) -> int:
        for found in TOKENS.finditer(text):
            _, control, escape, letter = found.groups()
            if control == "J":
                self._erase_below()
            elif escape:
                {"7": self._save, "8": self._restore, "D": self._down, "M": self._up}[escape]()
            elif letter == "\r":
                self.column = 0
            elif letter == "\n":
                self._down()
                self.column = 0
            elif letter:
                self._put(letter)
        return len(text)

    @property
    def shown(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.rows]

    @property
    def everything(self) -> str:
        return "\n".join([*self.gone, *self.shown]).rstrip()

    def _save(self) -> None:
        self.saved = self.row, self.column

    def _restore(self) -> None:
        self.row, self.column = self.saved

    def _erase_below(self) -> None:
        self.rows[self.row][self.column :] = [" "] * (self.width - self.column)
        for row in range(self.row + 1, self.height):
            self.rows[row] = [" "] * self.width

    def _down(self) -> None:
        self.column = min(self.column, self.width - 1)  # forgets that it was to wrap
        if self.row == self.height - 1:
            self.gone.append("".join(self.rows.pop(0)).rstrip())
            self.rows.append([" "] * self.width)
        else:
            self.row += 1

    def _up(self) -> None:
        assert self.row > 0, "would scroll the text away"
        self.row -= 1

    def _put(self, letter: str) -> None:
        cells = cell_len(letter)
        if self.column + cells > self.width:
            self._down()
            self.column = 0
        self.rows[self.row][self.column : self.column + cells] = [letter, *[""] * (cells - 1)]
        self.column += cells


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    screen = Terminal(20, 6)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(
        "shutil.get_terminal_size", lambda: os.terminal_size((screen.width, screen.height))
    )
    return screen


def wrapped(text: str, width: int) -> str:
    """The text as it stands on a terminal."""
    screen = Terminal(width, 200)
    screen.write(text)
    return screen.everything


TEXTS = {
    "lines": "def f(x):\n    return x\n\nprint(f(3))\n" * 4,
    "long lines": "a line that is longer than the terminal is wide, twice over\n" * 4,
    "full width": ("x" * 20 + "y" * 20 + "\n") * 3,
    "wide letters": "日本語のテキストは幅が広いので折り返し\n" * 4,
    "tabs": "\tif x:\n\t\treturn\n" * 5,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_a_text_is_whole_whatever_is_said_while_it_is_made(terminal: Terminal, text: str) -> None:
    text = text.expandtabs(8)
    with terminal, LiveText(coloured=True) as show:
        for at, letter in enumerate(text):
            show(Piece(letter, MODEL))
            if at % 3 == 0:
                glance(f"{at} 語 and more than fits into the width\nsecond\nthird")
        say("it went away")
    assert terminal.everything == wrapped(f"{text}\nit went away", 20)


def test_the_latest_state_stands_below_the_text(terminal: Terminal) -> None:
    with terminal, LiveText(coloured=False) as show:
        assert terminal.shown[1] == "waiting for the fir"
        show(Piece("some\nte", MODEL))
        glance("first")
        glance("second, longer than the screen")
        show(Piece("xt"))
        assert terminal.shown == ["some", "text", "second, longer than", "", "", ""]
    assert terminal.everything == "some\ntext"


def test_a_changed_width_is_followed(terminal: Terminal) -> None:
    with terminal, LiveText(coloured=False) as show:
        show(Piece("text", MODEL))
        terminal.width = 12
        glance("longer than twelve")
        assert terminal.shown[:2] == ["text", "longer than"]


def test_what_the_draft_says_alone_stands_below_until_the_target_is_back(
    terminal: Terminal,
) -> None:
    with terminal, LiveText(coloured=True) as show:
        show(Piece("verified", MODEL))
        show(Piece(" guess\nand more", verified=False))
        assert [line.strip() for line in terminal.shown[:4]] == [
            "verified", "the target is away;", "guess", "and more"
        ]  # fmt: skip
        show(Piece(" text", MODEL))
        assert terminal.shown[:2] == ["verified text", ""]


def test_a_terminal_that_cannot_move_its_cursor_is_told_after_the_text(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with terminal, LiveText(coloured=False) as show:
        show(Piece("a te", MODEL))
        say("it went away")
        show(Piece("xt", MODEL))
    assert terminal.everything == "a text\nit went away"


def test_what_is_no_terminal_is_told_at_once_and_on_stderr_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with LiveText(coloured=False) as show:
        show(Piece("te", MODEL))
        say("it went away")
        assert capsys.readouterr() == ("te", "it went away\n")
        show(Piece("xt", MODEL))
    assert capsys.readouterr() == ("xt\n", "")
