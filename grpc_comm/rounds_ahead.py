"""Rounds that were sent before the verdict of the one before them: which of them may still be answered."""

from __future__ import annotations

import threading
from collections import deque


class RoundsAhead:
    """Rounds under way, and what each but the last was assumed to come to. The lock makes a verdict and a round sent ahead of it come one
    after the other.
    """

    def __init__(self) -> None:
        self.lock = (
            threading.RLock()
        )  # a stream that has ended fails a round while it is being sent
        self.under_way = 0
        self._assumed: deque[list[int]] = deque()
        self._latest: list[int] | None = None  # of the last verdict

    def begin(self) -> None:
        """A round that follows no other."""
        with self.lock:
            self.under_way, self._latest = 1, None
            self._assumed.clear()

    def assume(self, tokens: list[int]) -> list[int] | None:
        """One more is sent, on these tokens of the round before it; returns all that is assumed beyond what was committed, None if it is not so."""
        if self.under_way == 0 and self._latest != tokens:
            return None
        if self.under_way:
            self._assumed.append(tokens)
        self.under_way += 1
        return [token for assumed in self._assumed for token in assumed]

    def answered(self, tokens: list[int]) -> bool:
        """The first of them came to this; false when those after it are dead."""
        self.under_way -= 1
        self._latest = tokens
        alive = not self._assumed or self._assumed.popleft() == tokens
        if not alive:
            self.under_way, self._latest = 0, None
            self._assumed.clear()
        return alive

    def lost(self) -> bool:
        """A round has no answer; whether it had been sent ahead of another one."""
        with self.lock:
            first, self.under_way = self.under_way, 0
            self._assumed.clear()
            self._latest = None
            return first == 0
