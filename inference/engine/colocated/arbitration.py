"""Decides whether other proposers are fast enough without the draft beside the target.

That draft occupies the target's device, and need not draft what others propose. So it pauses for a
few forward passes once others propose accepted tokens. It stays paused as long as tokens then take
less time than with the draft alone. Pure: no clock, no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inference.proposer import COLOCATED, NOBODY

WATCHED = 4
"""Forward passes in which the speed by other proposers is measured.

One more comes before them, which uses up the draft's own candidates.
"""

LEFT_ALONE = 192
"""Tokens after which the speed by other proposers is measured again."""

MARGIN = 1.25
"""Factor on the draft's estimated seconds a token, which ignores that misses come in runs."""

DEEPEST = 32
"""Maximum draft calls before a forward pass, in the estimate of seconds a token."""


@dataclass
class ProposerArbitration:
    """Speed of a text by other proposers while the draft is silent."""

    until: int = 0  # length from which the draft pauses when others propose an accepted token
    silent: bool = False  # the draft makes no calls for this text
    made: list[float] = field(default_factory=list)  # tokens of each forward pass in the silence

    def observe(self, length: int, proposers: Sequence[int], forwards: int) -> None:
        """Record committed tokens.

        length: tokens of the text now.
        proposers: [tokens] kind of the proposer of each new token.
        forwards: number of forward passes that committed them.
        """
        if self.silent:
            self.made = [*self.made, len(proposers) / forwards][-WATCHED - 1 :]
        elif length >= self.until and any(kind not in (COLOCATED, NOBODY) for kind in proposers):
            self.silent, self.made = True, []

    def suffice(self, length: int, forward: float, token: float) -> bool:
        """Whether the draft should stay silent, because others suffice or are being measured.

        length: tokens of the text now.
        forward: seconds of a forward pass.
        token: seconds a token with the draft alone.
        """
        seen = self.silent and len(self.made) > WATCHED
        if seen and forward * WATCHED / sum(self.made[1:]) > MARGIN * token:
            self.silent, self.until = False, length + LEFT_ALONE
        return self.silent


def token_seconds(forward: float, call: float, level: float, levels: int = 1) -> float:
    """Seconds a token with the draft alone, for the best number of calls before a forward pass.

    forward: seconds of a forward pass.
    call: seconds of a draft call, each of which adds so many levels of candidates.
    level: chance that a level holds the target's token, if the level above does.
    """
    best, tokens, value = forward, 1.0, 1.0
    for calls in range(1, DEEPEST // levels + 1):
        for _ in range(levels):
            value *= level
            tokens += value
        best = min(best, (forward + calls * call) / tokens)
    return best
