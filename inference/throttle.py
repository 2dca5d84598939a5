"""Keeps a text's rate where draft and target share a machine, and each slows the other down.

The promise is relative to the target with the draft silent. So forwards are timed in silence now
and then, and the draft works while the text loses little against them. Pure: no clock is read.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from inference.draft_tuning import TUNING
from inference.times import CHANGED, LATEST, TRUSTED


class Throttle:
    """Whether the draft of one text may make calls.

    quiet: seconds of the latest root-only forwards that were made while the draft was silent, as
        the text's reader sees them. Shared by the texts of one target.
    """

    def __init__(self, quiet: deque[float]) -> None:
        self._quiet, self._needed = quiet, 0 if len(quiet) >= TRUSTED else TRUSTED
        self._quicker = 0  # latest forwards beside the draft that were quicker than in silence
        self._tokens, self._timed = 0, 0  # tokens of the text, and when it was last silent
        self._ahead = 0.0  # tokens, of what the silent target would have made

    @property
    def allows(self) -> bool:
        """Whether the next call may be made."""
        return not self._needed and self._ahead > self._least

    @property
    def _least(self) -> float:
        """Tokens, below 0, that the text may be behind so far."""
        return -TUNING.loan - TUNING.loss * self._tokens

    def hear(self, seconds: float, tokens: int, forwards: int, *, lone: bool, silent: bool) -> None:
        """Record what came after the last time.

        A draft makes no forward quicker. So TRUSTED root-only forwards beside it that are clearly
        quicker than those in silence show that a neighbour slowed these: they are timed again.

        seconds: since then, by the reader's clock
        forwards: that made these tokens
        lone: whether all were root-only
        silent: whether the draft was silent meanwhile
        """
        self._tokens += tokens
        pace = seconds / max(forwards, 1)
        is_quicker = bool(self._quiet) and pace * CHANGED < median(self._quiet)
        self._quicker = self._quicker + 1 if lone and not silent and is_quicker else 0
        if lone and silent:
            self._time(pace)
        elif self._quicker == TRUSTED:
            self._quiet.clear()
            self._needed = TRUSTED
        elif len(self._quiet) >= TRUSTED:
            ahead = self._ahead + tokens - seconds / median(self._quiet)
            self._ahead = min(max(ahead, self._least - TUNING.most_behind), TUNING.most_ahead)
        if not self._needed and self._tokens - self._timed >= TUNING.retimed:
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
