"""The user's goal for drafting (speed, cost, or a limit on either), and prices that pursue it.

To meet a limit, the weight of cost is adjusted every few tokens: up while the speed is above its
minimum or a token is too expensive, down otherwise. No clock is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from inference.command import say
from inference.cost.billing import ENERGIES, PER_MILLION, Billing, blend
from inference.errors import InvalidRequest, Unavailable
from inference.flags.group import flags_of
from inference.planner.prices import SPEED, Prices, UnitPrices, Usage
from inference.proposer import MESSAGE_BYTES
from outrider.options.groups import GoalOptions, PriceOptions, read_knob

if TYPE_CHECKING:
    from inference.planner.acceptance import PairStats

UNPRICED = "give --usd_per_hour or --instance, or use a target started with --usd_per_hour"

OF_TOTAL = ("usd_per_kwh", "draft_watts", "usd_per_gb_up", "usd_per_gb_down")
"""Prices that total_cost needs in addition to the target's hourly price."""

EVERY = 8
"""Tokens between two changes of the weight."""

STEP = 0.2
"""Change of the weight when the measured value is e times the limit."""

MIN_SAVED = 0.25
"""Ratio of the price of drafting to that of waiting, from which on --cs at its cost end was
measured to be cheaper (docs/cost.md).
"""

SENT_BYTES = 20_000.0
"""Bytes per second that a busy draft sends to its target."""

UNSTEERED = "--cs needs an adaptive draft on this machine"
"""Why --cs is refused for a client without a draft, or whose draft is not adaptive."""


@dataclass(frozen=True)
class Goal:
    """A weight of cost against speed, or a limit on either, for every request of a run.

    With a limit on one, the other is optimised. The flags bound the values, and allow one limit.
    """

    objective: str = "total_cost"
    weight: float = 0.0  # 0: only speed, 1: only cost
    min_tps: float | None = None  # minimum tokens per second, at minimum cost
    max_per_token: float | None = None  # maximum US dollars or joules, at maximum speed
    billing: Billing = field(default_factory=Billing)
    # whether drafting gets a small price, for lack of a known price of its energy
    battery: bool = True

    @property
    def speed_alone(self) -> bool:
        """Whether speed is the whole goal."""
        return self.weight == 0 and self.min_tps is None and self.max_per_token is None

    @property
    def unpriced(self) -> bool:
        """Whether the objective is in dollars although the target has no price."""
        return not self.billing.priced and self.objective not in (*ENERGIES, "latency")

    @property
    def unsteered(self) -> str:
        """Why all positions of --cs are equivalent; empty if they differ."""
        if self.unpriced:
            return f"without a price of the target only speed counts: {UNPRICED}"
        try:
            prices = self.billing.unit_prices(self.objective)
        except InvalidRequest as error:
            return str(error)
        if prices != SPEED.times(prices.wall):
            return ""
        return (
            f"{self.objective} is proportional to time here, so all positions of --cs are "
            "equivalent: they differ only with prices of electricity or traffic"
        )

    @property
    def pointless(self) -> str:
        """Why --cs would save nothing; empty if it saves something.

        --cs can save only the cost of drafting and of the bytes that a draft sends.
        """
        if self.unsteered:
            return self.unsteered
        prices = self.billing.unit_prices(self.objective)
        saved = prices.drafting + prices.byte_up * SENT_BYTES
        if saved >= MIN_SAVED * prices.wall:
            return ""
        return (
            f"a second of drafting costs {saved / prices.wall:.1%} of a second of waiting "
            f"({self.objective}): too little to trade, since drafting saves more at every position"
        )

    @property
    def fallback(self) -> str:
        """A note if only the target's hourly price is weighed although the user stated other
        prices; else empty.
        """
        unstated = _unstated(self.billing)
        weighs_hours = self.billing.priced and self.objective == "api_cost"
        if self.speed_alone or not weighs_hours or len(unstated) == len(OF_TOTAL):
            return ""
        return (
            f"cost is that of the target's hours (api_cost): total_cost also needs "
            f"{' and '.join(unstated)} (0 if free)"
        )

    def prices(self, stats: PairStats) -> Prices:
        """Return the prices for one row of the draft."""
        if self.speed_alone:
            return Prices(battery=self.battery)
        expected = Usage(stats.target.seconds(1, 1), stats.draft.seconds(1, 1), MESSAGE_BYTES)
        guess = expected if expected.wall else Usage(1.0, 1.0, MESSAGE_BYTES)
        cost = self.billing.unit_prices(self.objective)
        return SteeredPrices(battery=self.battery, goal=self, cost=cost, expected=guess)


@dataclass
class SteeredPrices(Prices):
    """Prices that are adjusted to meet a goal."""

    goal: Goal = field(default_factory=Goal)
    cost: UnitPrices = SPEED  # unit prices of the goal's objective
    # assumed usage per token, until measured
    expected: Usage = field(default_factory=lambda: Usage(wall=1.0))

    def __post_init__(self) -> None:
        self.weight, self._since = self.goal.weight, 0
        self.tariff = blend(self.cost, self.weight, self.expected)

    def committed(self, tokens: int, effort: Usage) -> None:
        super().committed(tokens, effort)
        self._since += tokens
        if self._since >= EVERY:
            self._since = 0
            self._steer(self.effort.times(1 / self.tokens))

    def _steer(self, measured: Usage) -> None:
        """Adjust the weight by the measured usage per token."""
        spare = 0.0  # positive: increase the weight of cost
        if self.goal.min_tps is not None:
            spare = _log(1.0, measured.wall * self.goal.min_tps)
        elif self.goal.max_per_token is not None:
            spare = _log(self.cost.of(measured), self.goal.max_per_token)
        self.weight = min(max(self.weight + STEP * spare, 0.0), 1.0)
        self.tariff = blend(self.cost, self.weight, measured)


def _log(numerator: float, denominator: float) -> float:
    """Return the logarithm of a ratio, bounded so that a single stall has no lasting effect."""
    return min(max(math.log(max(numerator, 1e-12) / max(denominator, 1e-12)), -1.0), 1.0)


def read_billing(options: PriceOptions) -> Billing:
    """Read the prices of --usd_per_hour or --instance; without either the target has no price.

    Raises Unavailable if no source lists the instance.
    """
    stated = flags_of(PriceOptions).keys() & vars(Billing())
    billing = Billing(**{name: getattr(options, name) for name in stated})
    if options.instance is not None:
        from deploy.instance import Market
        from deploy.prices import InstancePrices

        try:
            prices = InstancePrices(live=not options.no_live)
            market: Market = "spot" if options.spot else "on-demand"
            price = prices.find(options.instance, options.region, market)
        except Unavailable as error:
            raise Unavailable(f"{error}; give --usd_per_hour instead of --instance") from error
        return replace(billing, usd_per_hour=price.usd_per_hour, source=str(price))
    if options.usd_per_hour is None:
        return billing
    return replace(billing, source=f"${options.usd_per_hour:g} an hour, as given")


def read_goal(options: GoalOptions, billing: Billing) -> Goal:
    """Read the goal from --cs, --objective and the limits.

    The default objective is total_cost if all its prices are stated, else api_cost. Raises
    InvalidRequest if the goal needs a missing price, and for a position of --cs if all are
    equivalent.
    """
    cost = "total_cost" if billing.priced and not _unstated(billing) else "api_cost"
    limit = options.max_joules_per_token
    goal = Goal(
        options.objective or ("energy_total" if limit is not None else cost),
        read_knob(options.cs),
        options.min_tps,
        limit if options.max_usd_per_1m is None else options.max_usd_per_1m / PER_MILLION,
        billing,
        battery=options.draft_watts is None,
    )
    if options.objective is None and goal.fallback:
        say(f"note: {goal.fallback}")
    if not goal.speed_alone:
        if goal.unpriced:
            raise InvalidRequest(f"{goal.objective} needs a price of the target: {UNPRICED}")
        billing.unit_prices(goal.objective)  # raises before anything is loaded
    if goal.weight and goal.unsteered:
        raise InvalidRequest(goal.unsteered)
    return goal


def _unstated(billing: Billing) -> list[str]:
    """Return the flags of the prices that total_cost lacks."""
    return [f"--{name}" for name in OF_TOTAL if getattr(billing, name) is None]
