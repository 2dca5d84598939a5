"""How fast a text goes by what others propose, beside a draft that holds the target while it works.

What others have appended, and what is on its way from them, need not be drafted again. So such a
draft falls silent for a few forwards once others name tokens, and stays silent as long as these
make tokens in less time than it would alone. Pure: no clock, no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inference.proposer import HOST, NOBODY

WATCHED = 4
"""Forwards, after a first one that uses up what is there, by which it is told how fast a text goes
by what others propose.
"""

LEFT_ALONE = 192
"""Tokens after which that is looked at again."""

MARGIN = 1.25
"""The draft's own forecast is made so many times as long: it forgets that misses come in rows."""

DEEPEST = 32
"""Calls before a forward at most, in the estimate of what a token costs."""


@dataclass
class Others:
    """What others propose for a text, and how fast it goes by that while the draft is silent.

    until: length at which the draft falls silent to see, once somebody else has named a token.
    """

    until: int = 0
    silent: bool = False
    made: list[float] = field(default_factory=list)  # tokens of each forward in the silence

    def hear(self, length: int, named: Sequence[int], forwards: int) -> None:
        """A text has come to this length; who named its latest tokens, of so many forwards."""
        if self.silent:
            self.made = [*self.made, len(named) / forwards][-WATCHED - 1 :]
        elif length >= self.until and any(kind not in (HOST, NOBODY) for kind in named):
            self.silent, self.made = True, []

    def suffice(self, length: int, forward: float, token: float) -> bool:
        """Whether the draft has nothing to add. forward: seconds of one.  token: seconds that one
        takes by the draft alone.
        """
        seen = self.silent and len(self.made) > WATCHED
        if seen and forward * WATCHED / sum(self.made[1:]) > MARGIN * token:
            self.silent, self.until = False, length + LEFT_ALONE
        return self.silent


def token_seconds(forward: float, call: float, level: float) -> float:
    """Of a text that the draft makes alone: each call before a forward finds one more level, which
    holds the target's token with the chance `level` if the one above does.
    """
    best, tokens, value = forward, 1.0, 1.0
    for calls in range(1, DEEPEST + 1):
        value *= level
        tokens += value
        best = min(best, (forward + calls * call) / tokens)
    return best
