"""Ends the output at its first stop string, even one that is split between pieces."""

from __future__ import annotations

from collections.abc import Sequence

from inference.errors import InvalidRequest

MAX_COUNT, MAX_LENGTH = 16, 1024
"""Maximum number of stop strings, and maximum characters of each."""


class StopStrings:
    """Passes on pieces of text up to the first stop string, which is left out.

    The end of a piece is held back while it may begin a stop string. Raises InvalidRequest for an
    empty stop string, for too many, or for one that is too long.

    match: the stop string that was found; empty if none was
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
        """Add a piece. Returns the text that is certainly before a stop string; empty after one."""
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
        """Return the text held back at the end of the output; empty after a stop string."""
        rest, self._buffer = self._buffer, ""
        return rest


def begun(text: str, string: str) -> int:
    """Return how many characters at the end of the text are a proper prefix of the string."""
    longest = min(len(string) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(string[:n])), 0)
