"""Shows output on stdout while it is generated.

If stdout and stderr are the same terminal, file or pipe, a message would land within the output, so
messages are printed before or after the output. Otherwise they go to stderr at once.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from threading import Lock
from types import TracebackType
from unicodedata import category

from rich.console import Console
from rich.live import Live
from rich.text import Text

from inference.command import messages_to, say
from outrider.text.pieces import Piece

_GREEN, _BOLD, _PLAIN = "\x1b[32m", "\x1b[1m", "\x1b[0m"


class LiveText:
    """A context manager that writes pieces of output to stdout as they arrive. On a terminal, a
    space replaces each control character.

    If `coloured`, the draft's tokens are green and the target's own are bold.
    """

    def __init__(self, coloured: bool) -> None:
        self._coloured, self._terminal = coloured, sys.stdout.isatty()
        self._shared = (self._terminal and sys.stderr.isatty()) or _lead_to_one_place()
        self._status = Live(
            Text("waiting for the first token", no_wrap=True, overflow="crop"),
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._messages: list[str] = []  # to be printed after the output
        self._begun, self._lock, self._stack = False, Lock(), ExitStack()

    def __call__(self, piece: Piece) -> None:
        with self._lock:
            self._status.stop()
            self._begun = True
        text = harmless(piece.text) if self._terminal else piece.text
        if self._coloured and text:
            text = f"{_GREEN if piece.accepted else _BOLD}{text}{_PLAIN}"
        _write(text)

    def __enter__(self) -> LiveText:
        if self._shared:
            self._stack.enter_context(messages_to(self._take_message))
            self._status.start(refresh=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the line of the output, and print the messages."""
        self._stack.close()
        self._status.stop()
        if kind is not None and issubclass(kind, BrokenPipeError):
            return
        _write("\n" * self._begun)
        for message in self._messages:
            say(message)

    def _take_message(self, line: str) -> None:
        with self._lock:
            if self._begun:
                self._messages.append(line)
            else:
                self._status.console.out(line, highlight=False)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def harmless(text: str) -> str:
    """Replace control characters, which a terminal would interpret, by spaces."""
    return "".join(
        " " if category(letter) == "Cc" and letter not in "\n\t" else letter for letter in text
    )


def _lead_to_one_place() -> bool:
    """Return whether stdout and stderr are the same file or pipe."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (AttributeError, OSError):  # streams of Python's own
        return False


def in_colour() -> bool:
    """Return whether to colour output: on a terminal, unless NO_COLOR is set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain
