"""Shows text on stdout while it is made."""

from __future__ import annotations

import sys
from unicodedata import category

from outrider.completion import Piece

_GREEN, _BOLD, _DIM, _PLAIN = "\x1b[32m", "\x1b[1m", "\x1b[2m", "\x1b[0m"


class LiveText:
    """Writes pieces to stdout as they come. On a terminal a control character is replaced by a
    space.

    Where `coloured`, tokens that the draft guessed are green and the target's own are bold.
    Unverified text is shown on a terminal only, dim. The verified text then follows from the same
    place.
    """

    def __init__(self, coloured: bool) -> None:
        self._coloured, self._terminal = coloured, sys.stdout.isatty()
        self._unverified = False

    def __call__(self, piece: Piece) -> None:
        if not piece.verified:
            self._unverified = self._unverified or bool(piece.text)
            self._write(piece.text if self._terminal else "", _DIM)
            return
        if self._unverified and self._terminal:
            sys.stdout.write("\n[the target is back; from where the dim text began:]\n")
        self._unverified = False
        self._write(piece.text, _GREEN if piece.accepted else _BOLD)

    def _write(self, text: str, colour: str) -> None:
        shown = _harmless(text) if self._terminal else text
        sys.stdout.write(f"{colour}{shown}{_PLAIN}" if self._coloured and shown else shown)
        sys.stdout.flush()


def _harmless(text: str) -> str:
    """The text without control characters, which a terminal would obey."""
    return "".join(
        " " if category(letter) == "Cc" and letter not in "\n\t" else letter for letter in text
    )


def silent(piece: Piece) -> None:
    """Shows nothing."""
