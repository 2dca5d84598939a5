"""What drafting may cost: a call of the draft and a sent node against the tokens that they bring.

A token is worth what tokens cost lately (a ratio of sums; Dinkelbach's method for ratios). A call
is made, and a node is sent, when what it is expected to bring is worth more than its own price.
Pure: no clock is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from inference.cost.objective import SPEED, Effort, Tariff

REMEMBERED_TOKENS = 100.0
"""Tokens after which a token counts for 1/e in the price of one."""

LEAST_GAIN = 0.005
"""Expected tokens for which a call is made, however cheap it is."""

USUAL_FLOOR, LEAST_FLOOR, MOST_FLOOR = 0.005, 0.001, 0.01
"""Of a sent node's value, where time alone has a price: before the draft's calls were measured, and
the bounds. A quick draft has time to look at unlikely nodes, so it may send them, too.
"""

FLOOR_A_SECOND = 0.5
"""The floor of a draft whose call takes a second, were it not bounded."""

BATTERY_PRICE = 0.03
"""Seconds of waiting that a second of drafting is worth on a battery, or where nobody knows."""

NODE_BYTES, MESSAGE_BYTES = 5.0, 40.0
"""On the way to the target: of a node, and of a message that carries some."""


@dataclass
class Prices:
    """Prices of one proposer. tariff: of a unit of time, drafting and bytes, in any unit.

    holds_target: calls run on the target's own device, so that the text waits for each of them.
    battery: drafting costs a little even where the tariff says nothing.
    node_seconds: by which a candidate makes a forward longer, where the text waits for that, too.
    """

    tariff: Tariff = SPEED
    holds_target: bool = False
    battery: bool = False
    node_seconds: float = 0.0
    effort: Effort = field(default_factory=Effort)  # of lately committed tokens
    tokens: float = 0.0

    @property
    def token(self) -> float:
        """What a token costs lately; 0 before the first."""
        return self.tariff.of(self.effort) / self.tokens if self.tokens else 0.0

    @property
    def drafting_second(self) -> float:
        """What a second of drafting costs."""
        price = self.tariff.drafting
        if self.battery:
            price = max(price, BATTERY_PRICE * self.tariff.wall)
        return price + self.tariff.wall if self.holds_target else price

    def committed(self, tokens: int, effort: Effort) -> None:
        """So many tokens have come, and took this."""
        kept = max(1 - tokens / REMEMBERED_TOKENS, 0.0)
        self.effort = self.effort.times(kept).plus(effort)
        self.tokens = self.tokens * kept + tokens

    def width(self, gains: Sequence[float], seconds: Callable[[int], float]) -> int:
        """How many nodes the next call ranks, 0 for no call.

        gains: tokens expected of ranking the first, the first two, ... nodes.  seconds: of a call
        by width.  While a call holds up nobody, what brings most a second is taken.
        """
        token, second = self.token, self.drafting_second
        best, most = 0, 0.0
        for width in _widths(len(gains)):
            gain, call = gains[width - 1], seconds(width)
            net = gain * token - second * call
            if gain < LEAST_GAIN or (self.tokens and net <= 0 < second):
                continue
            rate = net if self.holds_target and self.tokens else gain / max(call, 1e-9)
            if not best or rate > most:
                best, most = width, rate
        return best

    def least_value(self, call: float) -> float:
        """Of a node that is worth sending, where one call of the draft takes so long."""
        floor = min(max(FLOOR_A_SECOND * call, LEAST_FLOOR), MOST_FLOOR) if call else USUAL_FLOOR
        token = self.token
        price = NODE_BYTES * self.tariff.byte_up + self.node_seconds * self.tariff.wall
        return max(floor, min(price / token, 1.0)) if token else floor


@lru_cache
def _widths(most: int) -> tuple[int, ...]:
    """Those that are looked at: few shapes of calls, since some devices compile each."""
    powers = (1 << power for power in range(most.bit_length()) if 1 << power < most)
    return (*powers, most) if most else ()
