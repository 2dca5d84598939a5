"""Progress while waiting for AWS: prints each new state, and an unchanged one once a minute."""

from __future__ import annotations

import time

from inference.command import say

MINUTE = 60.0


class Wait:
    """Progress of a wait, with the seconds so far. name: of the resource"""

    def __init__(self, name: str) -> None:
        self._name, self._began = name, time.monotonic()
        self._words, self._due = "", 0.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def report(self, words: str) -> None:
        """Print the current state if it is new or was last printed a minute ago."""
        if words != self._words or self.seconds >= self._due:
            say(f"{self._name}: {words}, {self.seconds:.0f} s")
            self._words, self._due = words, self.seconds + MINUTE
