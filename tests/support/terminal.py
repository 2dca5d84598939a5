"""A terminal on which nothing is printed: it obeys what is written to it."""

from __future__ import annotations

import re
from contextlib import ExitStack, redirect_stderr, redirect_stdout

TOKENS = re.compile(r"\x1b\[\??[0-9;]*([A-Za-z])|(.)", re.DOTALL)


class Terminal:
    """A screen that obeys the control sequences of rich. It is too large to scroll or to wrap."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.rows = [""] * 50
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
                self.rows[self.row] = ""
            elif control == "A":
                self.row -= 1
            elif letter == "\r":
                self.column = 0
            elif letter == "\n":
                self.row, self.column = self.row + 1, 0
            elif letter:
                line = self.rows[self.row].ljust(self.column)
                self.rows[self.row] = line[: self.column] + letter + line[self.column + 1 :]
                self.column += 1
        return len(text)

    @property
    def shown(self) -> list[str]:
        return [row.rstrip() for row in self.rows]

    @property
    def everything(self) -> str:
        return "\n".join(self.shown).rstrip()
