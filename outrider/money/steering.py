"""Prices that follow a user's wish: a weight of cost against speed, or a limit on one of them.

A limit is kept by moving the weight every few tokens. More weight goes on cost while there is speed
to spare or a token is too dear, less otherwise. Pure: no clock is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from inference.cost.effort import SPEED, Effort, Tariff
from inference.cost.objective import Wish, blend
from inference.planner.prices import Prices

EVERY = 8
"""Tokens between two changes of the weight."""

STEP = 0.2
"""How far the weight moves when the measured value is e times the wanted one."""


@dataclass
class SteeredPrices(Prices):
    """Prices that follow a wish."""

    wish: Wish = field(default_factory=Wish)
    cost: Tariff = SPEED  # the objective's price of each unit
    # what a token may take, until one was measured
    expected: Effort = field(default_factory=lambda: Effort(wall=1.0))

    def __post_init__(self) -> None:
        self.weight, self._since = self.wish.weight, 0
        self.tariff = blend(self.cost, self.weight, self.expected)

    def committed(self, tokens: int, effort: Effort) -> None:
        super().committed(tokens, effort)
        self._since += tokens
        if self._since >= EVERY:
            self._since = 0
            self._steer(self.effort.times(1 / self.tokens))

    def _steer(self, measured: Effort) -> None:
        """Move the weight.

        measured: what a token takes lately
        """
        spare = 0.0  # above 0: cost may count more
        if self.wish.min_tps is not None:
            spare = _log(1.0, measured.wall * self.wish.min_tps)
        elif self.wish.max_per_token is not None:
            spare = _log(self.cost.of(measured), self.wish.max_per_token)
        self.weight = min(max(self.weight + STEP * spare, 0.0), 1.0)
        self.tariff = blend(self.cost, self.weight, measured)


def _log(more: float, less: float) -> float:
    """Logarithm of a ratio, bounded, so that a single stall has no long effect."""
    return min(max(math.log(max(more, 1e-12) / max(less, 1e-12)), -1.0), 1.0)
