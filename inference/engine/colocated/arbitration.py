"""Decides whether a draft on the target's device pauses because other proposers do well enough.

It pauses for a few forward passes once another proposer's token is accepted, and stays paused as
long as tokens then take less time than with the draft alone. Pure: no clock, no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inference.proposer import COLOCATED, NOBODY

WATCHED = 4
"""Forward passes during which the speed with other proposers only is measured.

One more pass precedes them, to use up the draft's own candidates.
"""

LEFT_ALONE = 192
"""Tokens after which the speed with other proposers only is measured again."""

MARGIN = 1.25
"""Factor on the draft's estimated seconds per token, which ignore that misses come in runs."""

DEEPEST = 32
"""Maximum draft calls per forward pass in the estimate of seconds per token."""


@dataclass
class ProposerArbitration:
    """Decision for one output, by its speed with other proposers while the draft is paused."""

    until: int = 0  # the draft does not pause before the sequence has this length
    silent: bool = False  # whether the draft is paused
    tokens: list[float] = field(default_factory=list)  # tokens per forward pass during the pause

    def observe(self, length: int, proposers: Sequence[int], forwards: int) -> None:
        """Record committed tokens.

        length: tokens of the sequence so far.
        proposers: [tokens] kind of the proposer of each new token.
        forwards: number of forward passes that committed them.
        """
        if self.silent:
            self.tokens = [*self.tokens, len(proposers) / forwards][-WATCHED - 1 :]
        elif length >= self.until and any(kind not in (COLOCATED, NOBODY) for kind in proposers):
            self.silent, self.tokens = True, []

    def suffice(self, length: int, forward: float, token: float) -> bool:
        """Whether the draft should stay paused, because others suffice or are being measured.

        length: tokens of the sequence so far.
        forward: seconds of a forward pass.
        token: seconds per token with the draft alone.
        """
        is_measured = self.silent and len(self.tokens) > WATCHED
        if is_measured and forward * WATCHED / sum(self.tokens[1:]) > MARGIN * token:
            self.silent, self.until = False, length + LEFT_ALONE
        return self.silent


def token_seconds(forward: float, call: float, level: float) -> float:
    """Return seconds per token with the draft alone, at its best number of calls per forward pass.

    forward: seconds of a forward pass.
    call: seconds of a draft call, each of which adds one level of candidates.
    level: probability that a level has the target's token, if the level above does.
    """
    best, tokens, value = forward, 1.0, 1.0
    for calls in range(1, DEEPEST + 1):
        value *= level
        tokens += value
        best = min(best, (forward + calls * call) / tokens)
    return best
