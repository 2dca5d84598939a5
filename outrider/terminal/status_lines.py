"""Status lines below the cursor of a terminal. The text above and the cursor stay in place.

Every move is relative to the cursor, so the text and its wrapping do not matter.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO

from inference.command import glance, has_display, say
from outrider.models.machine import size_words

if TYPE_CHECKING:
    from inference.model.checkpoint import Loading

_SAVE, _RESTORE, _DOWN, _UP, _ERASE = "\x1b7", "\x1b8", "\x1bD", "\x1bM", "\x1b[J"
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"

MAX_LINES = 8
"""Maximum number of lines shown."""

LARGE = 200e6
"""Minimum bytes of a model whose loading is announced where no progress can be shown."""

_EVERY = 0.1  # seconds between two updates


def takes_status(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


def columns() -> int:
    """Columns of the terminal at this moment."""
    return shutil.get_terminal_size().columns


class StatusLines:
    """The control sequences that draw and erase the lines; the writer of the text sends them."""

    def __init__(self, dim: bool) -> None:
        self._dim = dim
        self._drawn = False

    def erased(self) -> str:
        """The sequence that removes the lines."""
        drawn, self._drawn = self._drawn, False
        return f"{_SAVE}{_DOWN}\r{_ERASE}{_RESTORE}" if drawn else ""

    def drawn(self, lines: Sequence[str]) -> str:
        """The sequence that shows the last of these lines below the cursor. At the bottom of the
        screen it scrolls first.
        """
        from rich.cells import set_cell_size

        width, height = shutil.get_terminal_size()
        shown = list(lines)[-max(min(MAX_LINES, height - 2), 0) :] if height > 2 else []
        if not shown:
            return ""
        self._drawn = True
        room = _DOWN * len(shown) + _UP * len(shown)
        cut = [set_cell_size(line, width - 1).rstrip() for line in shown]
        below = "".join(f"{_DOWN}\r{line}" for line in cut)
        styled = f"{_DIM}{below}{_PLAIN}" if self._dim else below
        return f"{room}{_SAVE}{styled}{_RESTORE}"


class LoadingStatus:
    """A context that shows a model's loading progress in a status line on stderr. If stderr is not
    a terminal, a large model gets one line at the beginning.
    """

    def __init__(self, name: str) -> None:
        self._name, self._begun, self._shown = name, time.perf_counter(), -math.inf
        self._lines = StatusLines(dim=False) if takes_status(sys.stderr) else None

    def __enter__(self) -> Callable[[Loading], None]:
        return self._tell

    def __exit__(self, *_error: object) -> None:
        if self._lines is not None:
            self._write()

    def _tell(self, loading: Loading) -> None:
        first, now = self._shown < 0, time.perf_counter() - self._begun
        if self._lines is None:
            if first and loading.size > LARGE:
                files = f"{loading.files} files, " * (loading.files > 1)
                say(f"loading {self._name}: {files}{size_words(loading.size)}")
        elif now - self._shown >= _EVERY:
            self._write(self._words(loading, now))
        else:
            return
        self._shown = now

    def _words(self, loading: Loading, seconds: float) -> str:
        file = f"file {loading.file} of {loading.files}, " * (loading.files > 1)
        left = seconds * (loading.size - loading.read) / loading.read if loading.read else None
        done = f"{size_words(loading.read)} of {size_words(loading.size)}"
        wait = "" if left is None else f", {left:.0f} s left"
        return f"loading {self._name}: {file}{done}{wait}"

    def _write(self, *lines: str) -> None:
        if has_display():  # the terminal belongs to another display
            glance("\n".join(lines))
            return
        assert self._lines is not None
        sys.stderr.write(self._lines.erased() + self._lines.drawn(lines))
        sys.stderr.flush()
