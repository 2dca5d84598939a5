"""A terminal on which nothing is printed: it obeys what is written to it."""

from __future__ import annotations

import re
from contextlib import ExitStack, redirect_stderr, redirect_stdout

from rich.cells import cell_len

TOKENS = re.compile(r"\x1b\[\??[0-9;]*([A-Za-z])|(.)", re.DOTALL)


class Terminal:
    """A screen that obeys what a terminal obeys; lines that scroll off the top are kept."""

    encoding = "utf-8"

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.gone: list[str] = []
        self.rows = [[" "] * width for _ in range(height)]
        self.row = self.column = 0
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
            control, letter = found.groups()
            if control == "K":
                self.rows[self.row] = [" "] * self.width
            elif control == "A":
                self.row -= 1
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

    def _down(self) -> None:
        self.column = min(self.column, self.width - 1)  # forgets that it was to wrap
        if self.row == self.height - 1:
            self.gone.append("".join(self.rows.pop(0)).rstrip())
            self.rows.append([" "] * self.width)
        else:
            self.row += 1

    def _put(self, letter: str) -> None:
        cells = cell_len(letter)
        if self.column + cells > self.width:
            self._down()
            self.column = 0
        self.rows[self.row][self.column : self.column + cells] = [letter, *[""] * (cells - 1)]
        self.column += cells
