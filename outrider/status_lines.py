"""Lines below the cursor of a terminal, which leave the text above and the cursor where they are.

Every move is relative to the cursor, so nothing need be known of the text or of its wrapping.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import TextIO

_SAVE, _RESTORE, _DOWN, _UP, _ERASE = "\x1b7", "\x1b8", "\x1bD", "\x1bM", "\x1b[J"
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"

MOST = 8
"""Lines that are shown at once."""


def takes_status(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


def columns() -> int:
    """Columns of the terminal at this moment."""
    return shutil.get_terminal_size().columns


class StatusLines:
    """The control sequences that draw and erase the lines; whoever writes text sends them along."""

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
        shown = list(lines)[-max(min(MOST, height - 2), 0) :] if height > 2 else []
        if not shown:
            return ""
        self._drawn = True
        room = _DOWN * len(shown) + _UP * len(shown)
        cut = [set_cell_size(line, width - 1).rstrip() for line in shown]
        below = "".join(f"{_DOWN}\r{line}" for line in cut)
        styled = f"{_DIM}{below}{_PLAIN}" if self._dim else below
        return f"{room}{_SAVE}{styled}{_RESTORE}"


class Status:
    """Status lines on stderr while something is loaded: one state replaces another. Where stderr is
    no terminal nothing is shown.
    """

    def __init__(self) -> None:
        self._lines = StatusLines(dim=False) if takes_status(sys.stderr) else None

    def show(self, line: str) -> None:
        self._write(line)

    def close(self) -> None:
        """Remove the line."""
        self._write()

    def _write(self, *lines: str) -> None:
        if self._lines is not None:
            sys.stderr.write(self._lines.erased() + self._lines.drawn(lines))
            sys.stderr.flush()
