"""Limits the cost of drafting: compares the price of a draft call, or of a sent node, with the
tokens that it is expected to gain.

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
    """Time and traffic that some tokens took."""

    wall: float = 0.0  # wall-clock seconds of the target
    drafting: float = 0.0  # seconds of drafting on this machine
    bytes_up: float = 0.0
    bytes_down: float = 0.0

    def plus(self, usage: Usage) -> Usage:
        return Usage(*(mine + theirs for mine, theirs in zip(self, usage, strict=True)))

    def times(self, factor: float) -> Usage:
        return Usage(*(amount * factor for amount in self))


class UnitPrices(NamedTuple):
    """The price of a unit of each field of Usage, in the unit of an objective."""

    wall: float  # per second
    drafting: float = 0.0  # per second
    byte_up: float = 0.0
    byte_down: float = 0.0

    def of(self, usage: Usage) -> float:
        """Return the price of a usage."""
        return sum(price * amount for price, amount in zip(self, usage, strict=True))

    def plus(self, prices: UnitPrices) -> UnitPrices:
        return UnitPrices(*(mine + theirs for mine, theirs in zip(self, prices, strict=True)))

    def times(self, factor: float) -> UnitPrices:
        return UnitPrices(*(price * factor for price in self))


SPEED = UnitPrices(wall=1.0)
"""Prices for the objective of speed only: one per second of wall-clock time."""


@dataclass
class Prices:
    """Decides for one proposer which calls and nodes are worth their price."""

    tariff: UnitPrices = SPEED  # price of a second and of a byte, in any unit of cost
    holds_target: bool = False  # whether calls run on the target's device, so the output waits
    battery: bool = False  # whether drafting costs a little even if the tariff has no price for it
    node_seconds: float = 0.0  # seconds that a candidate adds to a pass, if the output waits for it
    effort: Usage = field(default_factory=Usage)  # usage of recently committed tokens
    tokens: float = 0.0  # number of recently committed tokens

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
        """Record the number of committed tokens, and their usage."""
        share = max(1 - tokens / TUNING.remembered_tokens, 0.0)
        self.effort = self.effort.times(share).plus(effort)
        self.tokens = self.tokens * share + tokens

    def width(self, gains: Sequence[float], seconds: Callable[[int], float]) -> int:
        """Return how many nodes the next call ranks; 0 if no call is worth its price.

        If the output waits for calls, choose the width with the best net gain. Otherwise choose
        the width with the most expected tokens per second.

        gains: expected tokens gained by ranking the first node, the first two, ...
        seconds: returns the expected seconds of a call of a width
        """
        token, second = self.token, self.drafting_second
        best, best_rate = 0, 0.0
        for width in widths_of(len(gains)):
            gain, call = gains[width - 1], seconds(width)
            net = gain * token - second * call
            if gain < TUNING.min_gain or (self.tokens and net <= 0 < second):
                continue
            rate = net if self.holds_target and self.tokens else gain / max(call, 1e-9)
            if not best or rate > best_rate:
                best, best_rate = width, rate
        return best

    def min_value(self) -> float:
        """Minimum value of a node that is worth sending.

        At this value, the expected token just pays for the node's bytes, and for its share of a
        forward pass if the output waits for that.
        """
        floor, token = NODE_BYTES / TUNING.token_bytes, self.token
        price = NODE_BYTES * self.tariff.byte_up + self.node_seconds * self.tariff.wall
        return max(floor, min(price / token, 1.0)) if token else floor


@lru_cache
def widths_of(limit: int) -> tuple[int, ...]:
    """Return the widths of calls to consider, up to `limit`.

    They are few, because some devices compile a graph for each width.
    """
    powers = (1 << power for power in range(limit.bit_length()) if 1 << power < limit)
    return (*powers, limit) if limit else ()
