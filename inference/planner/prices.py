"""The constants of drafting, and its prices: a draft call, or a sent node, costs something, and is
expected to gain tokens. Pure: reads no clock.

Marginal rule: draft while expected extra tokens x current cost per token exceed the cost of the
call. The cost per token is a ratio of recent sums (Dinkelbach's method for ratios). "Tuned cells"
refers to the regret study (docs/measured.md): the floor, the minimum gain and the width were chosen
on its tuning texts and confirmed on held-out texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from inference.proposer import NODE_BYTES


@dataclass(frozen=True)
class DraftTuning:
    """Constants for how drafts grow, what is sent, and what drafting may cost."""

    width: int = 8
    """Children proposed for a ranked node. Tuned cells."""
    widest: int = 32
    """Maximum nodes ranked in a call. Tuned cells."""
    room: int = 768
    """Ranked nodes whose keys a row holds after the committed tokens: as many as the widest calls
    rank in one round trip of 300 ms."""
    worth_ranking: float = 0.6
    """A child becomes a node for ranking at this fraction of the minimum value that is sent."""
    part_seconds: float = 0.25
    """Maximum seconds of a call that prefills a part of the prompt; copied text waits for it."""
    tries_again: int = 64
    """Committed tokens after which a paused draft is tried again."""
    hits_remembered: float = 20.0
    """Tokens after which a hit of the draft has faded to 1/e in the moving average. Without fading,
    a useless draft is called 1.18 instead of 0.70 times per token, at the same speed (cell
    20:useless:0 of benchmarks.regret)."""
    price_interval: int = 16
    """Draft calls after which prices are read again."""
    copied: int = 3
    """Maximum tokens that copied text proposes for a context."""
    forward_forgetting: float = 0.2
    """Weight of the latest forward pass in the moving average of a forward pass's seconds."""
    remembered_tokens: float = 100.0
    """Tokens after which an observation has faded to 1/e in the average cost of a token."""
    min_gain: float = 0.005
    """Minimum expected tokens of a draft call, however cheap the call is. Tuned cells."""
    token_bytes: float = 1000.0
    """Bytes that may be sent for one expected token if bytes have no price. Sending all nodes takes
    two to three times the bytes and saves a few percent of the time. Tuned cells."""
    battery_price: float = 0.03
    """Seconds of waiting that one second of drafting is worth, on battery power or if the power
    source is unknown."""
    loss: float = 0.015
    """Fraction of an output's tokens that drafting on the target's own machine may cost. The excess
    over 0.98 repays the loan in an output of 256 tokens (benchmarks.floor --worlds)."""
    loan: float = 1.0
    """Tokens that such an output may lose in addition. A draft that has lost them pauses until the
    fraction above has made up for them."""
    max_ahead: float = 6.0
    """Maximum gained tokens that offset such an output's later losses: with the loan, a dozen
    passes that take 1.5 times as long (shared-late-in-a-row of benchmarks.floor --worlds)."""
    max_behind: float = 5.0
    """Maximum recorded tokens beyond what such an output may lose, so that a single pause of the
    machine does not decide."""
    max_lost: float = 20.0
    """Maximum recorded loss in tokens of such an output between two reports: a longer wait is a
    pause of the machine, for which the draft would otherwise be paused for a hundred thousand
    tokens."""
    retimed: int = 512
    """Tokens of such an output after which forward passes are timed without the draft again."""


TUNING = DraftTuning()


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
