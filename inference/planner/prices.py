"""Limits of drafting's cost: the price of a draft call and of a sent node against the tokens they
gain.

Marginal rule: draft while expected extra tokens x current cost per token exceed the cost of the
call. The cost per token is a ratio of recent sums (Dinkelbach's method for ratios). Pure: reads no
clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from inference.loop.draft_tuning import TUNING
from inference.proposer import NODE_BYTES


class Usage(NamedTuple):
    """Time and traffic of some tokens."""

    wall: float = 0.0  # seconds of wall-clock time of the target
    drafting: float = 0.0  # seconds of drafting on this machine
    bytes_up: float = 0.0
    bytes_down: float = 0.0

    def plus(self, other: Usage) -> Usage:
        return Usage(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def times(self, factor: float) -> Usage:
        return Usage(*(part * factor for part in self))


class UnitPrices(NamedTuple):
    """Price of a unit of each part of a Usage, in the unit of an objective."""

    wall: float  # for a second
    drafting: float = 0.0  # for a second
    byte_up: float = 0.0
    byte_down: float = 0.0

    def of(self, usage: Usage) -> float:
        """Return the price of a usage."""
        return sum(price * amount for price, amount in zip(self, usage, strict=True))

    def plus(self, other: UnitPrices) -> UnitPrices:
        return UnitPrices(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def times(self, factor: float) -> UnitPrices:
        return UnitPrices(*(price * factor for price in self))


SPEED = UnitPrices(wall=1.0)
"""The objective of speed only: the price is the seconds themselves."""


@dataclass
class Prices:
    """Prices of one proposer."""

    tariff: UnitPrices = SPEED  # price of a second and of a byte, in any unit of cost
    holds_target: bool = False  # calls run on the target's device, so the text waits for them
    battery: bool = False  # drafting costs a little even where the tariff has no price
    node_seconds: float = 0.0  # a forward pass's seconds for each candidate, where the text waits
    effort: Usage = field(default_factory=Usage)  # of lately committed tokens
    tokens: float = 0.0  # lately committed

    @property
    def token(self) -> float:
        """Recent cost of a token, in the tariff's unit; 0 before the first."""
        return self.tariff.of(self.effort) / self.tokens if self.tokens else 0.0

    @property
    def drafting_second(self) -> float:
        """Cost of a second of drafting, in the tariff's unit."""
        price = self.tariff.drafting
        if self.battery:
            price = max(price, TUNING.battery_price * self.tariff.wall)
        return price + self.tariff.wall if self.holds_target else price

    def committed(self, tokens: int, effort: Usage) -> None:
        """Record committed tokens, and their usage."""
        kept = max(1 - tokens / TUNING.remembered_tokens, 0.0)
        self.effort = self.effort.times(kept).plus(effort)
        self.tokens = self.tokens * kept + tokens

    def width(self, gains: Sequence[float], seconds: Callable[[int], float]) -> int:
        """Return how many nodes the next call ranks, 0 for no call.

        gains: expected tokens of ranking the first node, the first two, ...
        seconds: expected seconds of a call by its width
        """
        widths = widths_of(len(gains))
        best = self.best([(gains[width - 1], seconds(width)) for width in widths])
        return 0 if best is None else widths[best]

    def best(self, offers: Sequence[tuple[float, float]]) -> int | None:
        """Return the index of the best of these calls; None if none is worth its price.

        offers: expected tokens and expected seconds of each

        Where the text waits for calls, the one with the best net gain is taken. Otherwise it is
        the one with most expected tokens a second.
        """
        token, second = self.token, self.drafting_second
        best, most = None, 0.0
        for index, (gain, call) in enumerate(offers):
            net = gain * token - second * call
            if gain < TUNING.least_gain or (self.tokens and net <= 0 < second):
                continue
            rate = net if self.holds_target and self.tokens else gain / max(call, 1e-9)
            if best is None or rate > most:
                best, most = index, rate
        return best

    def least_value(self) -> float:
        """Minimum value of a node that is worth sending.

        At this value, the expected token just pays for the node's bytes, and for its share of a
        forward pass where the text waits for that.
        """
        floor, token = NODE_BYTES / TUNING.token_bytes, self.token
        price = NODE_BYTES * self.tariff.byte_up + self.node_seconds * self.tariff.wall
        return max(floor, min(price / token, 1.0)) if token else floor


@lru_cache
def widths_of(most: int) -> tuple[int, ...]:
    """Return the widths that are considered, up to `most`.

    They are few, because some devices compile a graph for each.
    """
    powers = (1 << power for power in range(most.bit_length()) if 1 << power < most)
    return (*powers, most) if most else ()
