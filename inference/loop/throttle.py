"""Limits drafting if draft and target share a machine, and so slow each other down. Forward passes
are timed without the draft now and then, and the draft works while outputs lose little against
them. Reads no clock.
"""

from __future__ import annotations

from collections import deque

from inference.loop.draft_tuning import TUNING
from inference.times import CHANGED, LATEST, TRUSTED, typical


class Baseline:
    """The speed of a target while the draft is paused, and what drafting has cost its outputs.

    All requests of a client share it, so a useless draft costs them its loan only once.

    seconds: those of the latest root-only passes while the draft was paused, as the reader saw them
    owes: whether the draft has used up its loan, and not enough tokens were saved since to try it
        again. Each time more must be saved, so a draft that pays late gets the passes it needs.
    """

    def __init__(self) -> None:
        self.seconds = deque[float](maxlen=LATEST)
        self.owes = False
        self._settled = 0.0  # tokens ahead of a target without draft, up to the last pause
        self._tokens, self._drafted = 0.0, 0.0  # since that pause: tokens allowed for, seconds
        self._was_timed = False  # whether a pass was timed since the last drafted tokens
        self._savings = 0.0  # tokens ahead at which the draft is tried again

    @property
    def ahead(self) -> float:
        """Tokens that outputs are ahead of what drafting may cost them. The latest speed counts,
        because a slower machine is not the draft's fault.
        """
        if len(self.seconds) < TRUSTED:
            return self._settled
        ahead = self._settled + self._tokens - self._drafted / typical(self.seconds)
        return min(max(ahead, -TUNING.loan - TUNING.max_behind), TUNING.max_ahead)

    def time(self, seconds: float) -> None:
        """Record a root-only forward pass without the draft, which saves a part of its token."""
        self.seconds.append(seconds)
        self._tokens += TUNING.loss
        self._was_timed = True
        self._judge()

    def count(self, tokens: int, seconds: float) -> None:
        """Record tokens while the draft was working, and their seconds. Tokens before the last
        pause are settled by the speed measured during the pause.
        """
        if len(self.seconds) < TRUSTED:
            return
        if self._was_timed:
            self._settled, self._tokens, self._drafted = self.ahead, 0.0, 0.0
            self._was_timed = False
        self._tokens += (1 + TUNING.loss) * tokens
        self._drafted += min(seconds, (tokens + TUNING.max_lost) * typical(self.seconds))
        self._judge()

    def _judge(self) -> None:
        if not self.owes:
            self.owes = self.ahead < -TUNING.loan
        elif self.ahead >= self._savings:
            self.owes = False
            self._savings = min(2 * self._savings + TUNING.loan, TUNING.max_ahead)


class Throttle:
    """Decides whether a request's draft may make calls.

    baseline: shared by the requests to the target
    """

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline
        self._needed = TRUSTED if len(baseline.seconds) < TRUSTED else 0
        self._quicker = 0  # latest passes with the draft that were faster than without it
        self._since = 0  # tokens since the draft was last paused

    @property
    def allows(self) -> bool:
        """Whether the next call may be made."""
        return not self._needed and not self._baseline.owes

    def observe(
        self, seconds: float, tokens: int, forwards: int, *, lone: bool, silent: bool
    ) -> None:
        """Record the tokens since the last call.

        A draft cannot speed up a forward pass. So if TRUSTED root-only passes with the draft are
        clearly faster than those without it, another process slowed the latter, and they are timed
        again.

        seconds: time since the last call, by the reader's clock
        forwards: number of forward passes that committed these tokens
        lone: whether all these passes were root-only
        silent: whether the draft was paused meanwhile
        """
        samples, pace = self._baseline.seconds, seconds / max(forwards, 1)
        is_quicker = bool(samples) and pace * CHANGED < typical(samples)
        self._quicker = self._quicker + 1 if lone and not silent and is_quicker else 0
        self._since += tokens
        if lone and silent:
            self._baseline.time(pace)
            self._needed = max(self._needed - 1, 0)
            self._since = 0 if not self._needed else self._since
            return
        if self._quicker == TRUSTED:
            samples.clear()
        else:
            self._baseline.count(tokens, seconds)
        if len(samples) < TRUSTED or self._since >= TUNING.retimed:
            self._needed = self._needed or TRUSTED
