"""The user's goal for drafting (speed, cost, or cost at a minimum speed), prices for it, and the
budget of a run.

For a minimum speed, the weight of cost is adjusted every few tokens: up while the speed is above
it, down otherwise.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from inference.command import say
from inference.cost.billing import ENERGIES, Billing, Figure, Quality, blend
from inference.errors import InvalidRequest, Unavailable
from inference.flags.group import flags_of
from inference.planner.prices import SPEED, Prices, UnitPrices, Usage
from inference.proposer import MESSAGE_BYTES
from inference.text_log import Traffic
from outrider.options.groups import GoalOptions, PriceOptions, read_knob

if TYPE_CHECKING:
    from inference.planner.acceptance import PairStats

UNPRICED = "give --usd_per_hour or --instance, or use a target started with --usd_per_hour"

OF_TOTAL = ("usd_per_kwh", "draft_watts", "usd_per_gb")
"""Prices that total_cost needs in addition to the target's hourly price."""

EVERY = 8
"""Tokens between two changes of the weight."""

STEP = 0.2
"""Change of the weight when the measured speed is e times the minimum."""

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
    """A weight of cost against speed, or a minimum speed, for every request of a run."""

    objective: str = "total_cost"
    weight: float = 0.0  # 0: only speed, 1: only cost
    min_tps: float | None = None  # minimum tokens per second, at minimum cost
    billing: Billing = field(default_factory=Billing)
    # whether drafting gets a small price, for lack of a known price of its energy
    battery: bool = True

    @property
    def speed_alone(self) -> bool:
        """Whether speed is the whole goal."""
        return self.weight == 0 and self.min_tps is None

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
        if self.goal.min_tps is not None:
            excess = -math.log(max(measured.wall * self.goal.min_tps, 1e-12))
            step = STEP * min(max(excess, -1.0), 1.0)  # bounded: a stall has no lasting effect
            self.weight = min(max(self.weight + step, 0.0), 1.0)
        self.tariff = blend(self.cost, self.weight, measured)


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
            market: Market = "spot" if options.spot else "on-demand"
            price = InstancePrices().find(options.instance, options.region, market)
        except Unavailable as error:
            raise Unavailable(f"{error}; give --usd_per_hour instead of --instance") from error
        return replace(billing, usd_per_hour=price.usd_per_hour, source=str(price))
    if options.usd_per_hour is None:
        return billing
    return replace(billing, source=f"${options.usd_per_hour:g} an hour, as given")


def read_goal(options: GoalOptions, billing: Billing) -> Goal:
    """Read the goal from --cs, --objective and --min_tps.

    The default objective is total_cost if all its prices are stated, else api_cost. Raises
    InvalidRequest if the goal needs a missing price, and for a position of --cs if all are
    equivalent.
    """
    cost = "total_cost" if billing.priced and not _unstated(billing) else "api_cost"
    goal = Goal(
        options.objective or cost,
        read_knob(options.cs),
        options.min_tps,
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


class Charge:
    """Usage of one request, counted until the charge is closed."""

    def __init__(self, budget: RunBudget) -> None:
        self.budget, self._taken, self._began = budget, Usage(), budget.seconds(1)[1]
        self._ended: float | None = None

    def take(self, drafting: float, traffic: Traffic) -> None:
        """Set the request's total seconds of drafting, and its session's total bytes."""
        self._taken = Usage(0.0, drafting, traffic.bytes_up, traffic.bytes_down)

    def close(self) -> None:
        """Stop charging time. Idempotent."""
        if self._ended is None:
            self._ended = self.budget.seconds(-1)[1]

    @property
    def usage(self) -> Usage:
        """The request's usage; of a second with concurrent requests only its share counts."""
        until = self.budget.seconds()[1] if self._ended is None else self._ended
        return self._taken._replace(wall=until - self._began)

    @property
    def usd(self) -> float | None:
        """The request's US dollars by the known prices; None if the target has no price."""
        return self.budget.price(self.usage)


class RunBudget:
    """Counts the usage of all requests of a run. A second of the target is paid once, however many
    requests run in it.

    limit: US dollars; None for no limit

    Raises InvalidRequest for a limit without a price of the target.
    """

    def __init__(
        self,
        billing: Billing,
        limit: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if limit is not None and not billing.priced:
            raise InvalidRequest(f"--max_usd needs a price of the target: {UNPRICED}")
        self.billing, self._limit, self._clock = billing, limit, clock
        self._open, self._closed, self._lock = list[Charge](), Usage(), threading.Lock()
        self._wall = self._shared = self._at = 0.0
        self._texts = 0  # requests that run

    def seconds(self, texts: int = 0) -> tuple[float, float]:
        """Return the seconds in which requests ran, each counted once, and the charge of a request
        that ran in all of them: concurrent requests share a second evenly. Thread-safe.

        texts: added to the number of running requests
        """
        with self._lock:
            now = self._clock()
            if self._texts:
                self._wall += now - self._at
                self._shared += (now - self._at) / self._texts
            self._at, self._texts = now, self._texts + texts
            return self._wall, self._shared

    @contextmanager
    def charge(self) -> Iterator[Charge]:
        """Yield the charge of one request, counted until the context ends, also on failure."""
        charge = Charge(self)
        with self._lock:
            self._open.append(charge)
        try:
            yield charge
        finally:
            charge.close()
            usage = charge.usage
            with self._lock:
                self._open.remove(charge)
                self._closed = self._closed.plus(usage)

    def price(self, usage: Usage) -> float | None:
        """Return this usage's US dollars by the known prices; None if the target has no price."""
        return self.billing.known_prices.of(usage) if self.billing.priced else None

    def cost(self, usage: Usage, tokens: int) -> Figure:
        """Return a request's cost in US dollars: a lower bound if some prices are unknown."""
        usd, source = self.price(usage), self.billing.source or ""
        if usd is None:
            return Figure.unavailable("the target has no price")
        if not tokens:
            return Figure.measured(usd, source)
        total = self.billing.figures(tokens, usage)["total_cost"]
        if total.value is None:
            source = f"at least, by {source}; not counted: {total.source}"
            return Figure(usd, Quality.ESTIMATED, source, lower_bound=True)
        return Figure(usd, total.quality, source or total.source)

    def energy(self, usage: Usage, tokens: int) -> Figure:
        """Return the joules that this machine used to draft a request, by --draft_watts."""
        if not tokens:
            return Figure.measured(0.0, "no tokens were generated")
        return self.billing.figures(tokens, usage)["draft_energy"].times(tokens)

    @property
    def usage(self) -> Usage:
        """Usage of all requests so far."""
        with self._lock:
            usage, running = self._closed, [*self._open]
        for charge in running:
            usage = usage.plus(charge.usage)
        return usage._replace(wall=self.seconds()[0])

    @property
    def spent(self) -> float:
        """US dollars spent so far, by the known prices."""
        return self.price(self.usage) or 0.0

    @property
    def empty(self) -> bool:
        """Whether the limit is reached."""
        return self._limit is not None and self.spent >= self._limit
