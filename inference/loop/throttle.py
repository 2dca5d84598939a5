"""Limits drafting where draft and target share a machine, and each slows the other down.

The promise is relative to the target without the draft. So forward passes are timed without it now
and then, and the draft works while texts lose little against them. Pure: reads no clock.
"""

from __future__ import annotations

from collections import deque

from inference.loop.draft_tuning import TUNING
from inference.times import CHANGED, LATEST, TRUSTED, typical


class Baseline:
    """The speed of a target while the draft is paused, and what drafting has cost its texts.

    All texts of a client share it, so a draft of no use costs them its loan once.

    seconds: of the latest root-only forward passes in silence, as the texts' readers see them
    owes: whether the draft has used up its loan, and texts have not yet saved enough to try it
        again. They save more each time, so a draft that pays late gets the passes that it needs.
    """

    def __init__(self) -> None:
        self.seconds = deque[float](maxlen=LATEST)
        self.owes = False
        self._settled = 0.0  # tokens ahead of the silent target, up to the last silence
        self._tokens, self._drafted = 0.0, 0.0  # since then: tokens allowed for, and seconds
        self._was_timed = False  # since the last tokens that came beside the draft
        self._savings = 0.0  # tokens ahead at which the draft is tried again

    @property
    def ahead(self) -> float:
        """Tokens that texts are ahead of what drafting may cost them, by the latest speed: a
        machine that has slowed down is not the draft's fault.
        """
        if len(self.seconds) < TRUSTED:
            return self._settled
        ahead = self._settled + self._tokens - self._drafted / typical(self.seconds)
        return min(max(ahead, -TUNING.loan - TUNING.most_behind), TUNING.most_ahead)

    def time(self, seconds: float) -> None:
        """Record a root-only forward pass in silence; a part of its token is saved."""
        self.seconds.append(seconds)
        self._tokens += TUNING.loss
        self._was_timed = True
        self._judge()

    def count(self, tokens: int, seconds: float) -> None:
        """Record tokens beside the draft, and their seconds. Tokens before the last silence are
        settled by the speed that it showed.
        """
        if len(self.seconds) < TRUSTED:
            return
        if self._was_timed:
            self._settled, self._tokens, self._drafted = self.ahead, 0.0, 0.0
            self._was_timed = False
        self._tokens += (1 + TUNING.loss) * tokens
        self._drafted += min(seconds, (tokens + TUNING.most_lost) * typical(self.seconds))
        self._judge()

    def _judge(self) -> None:
        if not self.owes:
            self.owes = self.ahead < -TUNING.loan
        elif self.ahead >= self._savings:
            self.owes = False
            self._savings = min(2 * self._savings + TUNING.loan, TUNING.most_ahead)


class Throttle:
    """Decides whether the draft of a text may make calls.

    baseline: shared by the texts of the target
    """

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline
        self._needed = TRUSTED if len(baseline.seconds) < TRUSTED else 0
        self._quicker = 0  # latest passes beside the draft that were quicker than in silence
        self._since = 0  # tokens of the text since it was last silent

    @property
    def allows(self) -> bool:
        """Whether the next call may be made."""
        return not self._needed and not self._baseline.owes

    def observe(
        self, seconds: float, tokens: int, forwards: int, *, lone: bool, silent: bool
    ) -> None:
        """Record the tokens since the last call.

        A draft makes no forward pass faster. So TRUSTED root-only forward passes beside it that are
        clearly faster than those in silence show that another process slowed these: they are timed
        again.

        seconds: since the last call, by the reader's clock
        forwards: number of forward passes of these tokens
        lone: whether all were root-only
        silent: whether the draft was paused meanwhile
        """
        known, pace = self._baseline.seconds, seconds / max(forwards, 1)
        is_quicker = bool(known) and pace * CHANGED < typical(known)
        self._quicker = self._quicker + 1 if lone and not silent and is_quicker else 0
        self._since += tokens
        if lone and silent:
            self._baseline.time(pace)
            self._needed = max(self._needed - 1, 0)
            self._since = 0 if not self._needed else self._since
            return
        if self._quicker == TRUSTED:
            known.clear()
        else:
            self._baseline.count(tokens, seconds)
        if len(known) < TRUSTED or self._since >= TUNING.retimed:
            self._needed = self._needed or TRUSTED
