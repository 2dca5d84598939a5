"""Keeps a text's rate where draft and target share a machine, and each slows the other down.

The promise is relative to the target with the draft silent. So forwards are timed in silence now
and then, and the draft works while the text loses little against them. Pure: no clock is read.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from inference.times import CHANGED, LATEST, TRUSTED

LOSS = 0.02
"""Part of a text's tokens that drafting may cost it."""

LOAN = 1.0
"""Tokens that a text may lose beyond that."""

MOST_AHEAD = 4.0
"""Tokens of gain that count against later losses."""

FRESH = 512
"""Tokens after which forwards are timed in silence again."""

MOST_BEHIND = 8.0
"""Tokens beyond what a text may lose that are remembered: one pause of the machine is no judgement.
"""


class Throttle:
    """Whether the draft of one text may make calls.

    quiet: seconds of the latest root-only forwards that were made while the draft was silent, as
        the text's reader sees them. Shared by the texts of one target.
    """

    def __init__(self, quiet: deque[float]) -> None:
        self._quiet, self._needed = quiet, 0 if len(quiet) >= TRUSTED else TRUSTED
        self._tokens, self._timed = 0, 0  # tokens of the text, and when it was last silent
        self._ahead = 0.0  # tokens, of what the silent target would have made

    @property
    def allows(self) -> bool:
        """Whether the next call may be made."""
        return not self._needed and self._ahead > self._least

    @property
    def _least(self) -> float:
        """Tokens, below 0, that the text may be behind so far."""
        return -LOAN - LOSS * self._tokens

    def hear(self, seconds: float, tokens: int, forwards: int, *, quiet: bool) -> None:
        """Record what came after the last time.

        seconds: since then, by the reader's clock
        forwards: that made these tokens
        quiet: whether all were root-only, and the draft was silent
        """
        self._tokens += tokens
        if quiet:
            self._time(seconds / max(forwards, 1))
        elif len(self._quiet) >= TRUSTED:
            ahead = self._ahead + tokens - seconds / median(self._quiet)
            self._ahead = min(max(ahead, self._least - MOST_BEHIND), MOST_AHEAD)
        if not self._needed and self._tokens - self._timed >= FRESH:
            self._needed = TRUSTED

    def _time(self, seconds: float) -> None:
        """Record a root-only forward in silence. Losses against another pace are forgotten."""
        before = median(self._quiet) if self._quiet else seconds
        self._quiet.append(seconds)
        self._needed = max(self._needed - 1, 0)
        if not self._needed:
            self._timed = self._tokens
        if median(self._quiet) > CHANGED * before:
            self._ahead = max(self._ahead, 0.0)


def silence() -> deque[float]:
    """Return what the throttles of one target share: nothing yet."""
    return deque(maxlen=LATEST)
