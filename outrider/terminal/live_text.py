"""Shows a text on stdout while it is generated, with messages below.

If stdout and stderr are the same terminal, file or pipe, a message would land within the text. So
it is printed after the text, and on a terminal also shown in status lines below it. Otherwise it
goes to stderr at once.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from threading import Lock
from types import TracebackType
from unicodedata import category

from inference.command import messages_to, say
from outrider.terminal.status_lines import StatusLines, columns, takes_status
from outrider.text.pieces import Piece

_GREEN, _BOLD, _PLAIN = "\x1b[32m", "\x1b[1m", "\x1b[0m"
_WAITING = "waiting for the first token"


class LiveText:
    """A context that writes pieces to stdout as they come. On a terminal a control character is
    replaced by a space.

    If `coloured`, the draft's tokens are green and the target's own are bold.
    """

    def __init__(self, coloured: bool) -> None:
        self._coloured, self._terminal = coloured, sys.stdout.isatty()
        self._status = StatusLines(coloured) if takes_status(sys.stdout) else None
        # messages would land in the text
        self._below = (self._terminal and sys.stderr.isatty()) or _lead_to_one_place()
        self._messages: list[str] = []  # to be printed after the text
        self._now = [_WAITING]
        self._begun, self._column = False, 0
        self._lock, self._stack = Lock(), ExitStack()

    def __call__(self, piece: Piece) -> None:
        with self._lock:
            if not self._begun:
                self._begun, self._now = True, []
            colour = _GREEN if piece.accepted else _BOLD
            text = harmless(piece.text) if self._terminal else piece.text
            self._write(text, colour if self._coloured and text else "")

    def __enter__(self) -> LiveText:
        if self._below:
            self._stack.enter_context(messages_to(self._take_message))
            self._write("")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the text's line, and print the messages."""
        self._stack.close()
        if kind is not None and issubclass(kind, BrokenPipeError):
            return
        with self._lock:
            self._now = []
            self._write("\n" * self._begun)
        for message in self._messages:
            say(message)

    def _take_message(self, line: str, lasting: bool) -> None:
        with self._lock:
            if lasting:
                self._messages.append(line)
            self._now = harmless(line).splitlines()
            self._write("")

    def _write(self, text: str, colour: str = "") -> None:
        """Write the text, and the status lines below it."""
        shown = f"{colour}{text}{_PLAIN}" if colour else text
        if self._status is None or not self._below:
            sys.stdout.write(shown)
        else:
            self._advance(text)
            erased = self._status.erased()
            full = self._column == columns()  # some terminals do not wrap at the edge
            below = "" if full else self._status.drawn(self._now)
            sys.stdout.write(f"{erased}{shown}{below}")
        sys.stdout.flush()

    def _advance(self, text: str) -> None:
        """Follow the cursor's column."""
        from rich.cells import cell_len

        width = columns()
        for letter in text:
            if letter == "\n":
                self._column = 0
            elif letter == "\t":
                self._column = min(self._column // 8 * 8 + 8, width - 1)
            else:
                cells = cell_len(letter)
                wraps = self._column + cells > width
                self._column = cells if wraps else self._column + cells


def harmless(text: str) -> str:
    """The text without control characters, which a terminal would interpret."""
    return "".join(
        " " if category(letter) == "Cc" and letter not in "\n\t" else letter for letter in text
    )


def _lead_to_one_place() -> bool:
    """Whether stdout and stderr are the same file or pipe."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (AttributeError, OSError):  # streams of Python's own
        return False


def in_colour() -> bool:
    """Whether text is coloured: on a terminal, unless NO_COLOR is set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain
