"""Ends a text at the first stop string, across pieces of text."""

from __future__ import annotations

from collections.abc import Sequence

from inference.errors import InvalidRequest

MAX_COUNT, MAX_LENGTH = 16, 1024
"""Bounds of the number of stop strings, and of the characters of each."""


class StopStrings:
    """Returns the pieces of a text up to the first stop string, without it.

    A piece's end is held back while it may be the beginning of a stop string. Raises InvalidRequest
    for an empty string, or beyond the bounds.

    match: the first stop string of the text; empty for none
    """

    def __init__(self, strings: Sequence[str]) -> None:
        if len(strings) > MAX_COUNT or any(
            not 1 <= len(string) <= MAX_LENGTH for string in strings
        ):
            raise InvalidRequest(
                f"up to {MAX_COUNT} stop strings of 1 to {MAX_LENGTH} characters are allowed: got "
                f"{[string[:40] for string in strings[: MAX_COUNT + 1]]}"
            )
        self._strings, self._buffer, self.match = tuple(strings), "", ""

    def push(self, piece: str) -> str:
        """The text that is certainly before a stop string. Empty once one was found."""
        if self.match or not self._strings:
            return "" if self.match else piece
        text = self._buffer + piece
        places = [(text.find(string), string) for string in self._strings if string in text]
        if places:
            (place, self.match), self._buffer = min(places), ""
            return text[:place]
        certain = len(text) - max(begun(text, string) for string in self._strings)
        self._buffer = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """The rest of a text in which no stop string was found."""
        rest, self._buffer = self._buffer, ""
        return rest


def begun(text: str, string: str) -> int:
    """Characters at the end of the text that a string begins with, short of the whole string."""
    longest = min(len(string) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(string[:n])), 0)
