"""What the user wants of drafting: speed, cost or a limit on one, and the prices that
cost is made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from inference.command import say
from inference.cost.accounting import ENERGIES, Rates
from inference.cost.effort import SPEED, Effort
from inference.cost.objective import PER_MILLION, Terms, Wish, read_knob
from inference.errors import InvalidRequest, Unavailable
from inference.planner.knowledge import Knowledge
from inference.planner.prices import Prices
from inference.proposer import MESSAGE_BYTES
from outrider.money.steering import SteeredPrices
from outrider.options.groups import GoalOptions, PriceOptions

UNPRICED = "give --usd_per_hour or --instance, or ask a target that was started with --usd_per_hour"


class Stated(NamedTuple):
    """The prices that are paid, and who states them, with the day where it is known."""

    rates: Rates
    source: str


def read_wish(options: GoalOptions, rates: Rates | None) -> Wish:
    """The wish that --cs, --objective and the limits express.

    Cost is what --objective says. By default it is the total where all its prices are stated, else
    the price of the target's hours.
    """
    cost = "total_cost" if rates is not None and not _unstated(options, rates) else "api_cost"
    objective = options.objective or (
        "energy_total" if options.max_joules_per_token is not None else cost
    )
    limit = (
        options.max_usd_per_1m / PER_MILLION
        if options.max_usd_per_1m is not None
        else options.max_joules_per_token
    )
    return Wish(objective, read_knob(options.cs), options.min_tps, limit)


def read_terms(options: PriceOptions, rates: Rates | None, wish: Wish) -> Terms | None:
    """The terms of this run's bills; None where nothing is priced and nothing need be. Raises
    InvalidRequest where the wish needs a price that nobody has stated.
    """
    if rates is None and wish.speed_alone:
        return None
    if rates is None and wish.objective not in (*ENERGIES, "latency"):
        raise InvalidRequest(f"{wish.objective} needs a price of the target: {UNPRICED}")
    return terms_of(options, rates)


def terms_of(options: PriceOptions, rates: Rates | None) -> Terms:
    """The terms of bills: prices, the share of the target that is charged, and watts."""
    return Terms(
        rates or Rates(0.0), options.target_share, options.draft_watts, options.target_watts
    )


def fallback_note(options: GoalOptions, rates: Rates | None, wish: Wish) -> str | None:
    """A note for a user who stated other prices, although only the target's hours are weighed. None
    where there is nothing to say.
    """
    also = (
        options.usd_per_kwh,
        options.draft_watts,
        options.usd_per_gb_up,
        options.usd_per_gb_down,
    )
    asked = (
        options.objective is None
        and not wish.speed_alone
        and any(value is not None for value in also)
    )
    if not asked or rates is None or wish.objective != "api_cost":
        return None
    missing = " and ".join(_unstated(options, rates))
    return (
        f"cost is what the target's hours cost (api_cost): total_cost also needs {missing} (0 "
        "for what costs nothing)"
    )


def _unstated(options: PriceOptions, rates: Rates) -> list[str]:
    """Flags of the prices that are missing for the total."""
    parts = {
        "--usd_per_kwh": rates.usd_per_kwh,
        "--draft_watts": options.draft_watts,
        "--usd_per_gb_up": rates.usd_per_gb_to_target,
        "--usd_per_gb_down": rates.usd_per_gb_from_target,
    }
    return [flag for flag, value in parts.items() if value is None]


def read_prices(options: PriceOptions, described_usd_per_hour: float) -> Stated | None:
    """The prices of --usd_per_hour, of --instance, or as the target states them. None where nobody
    has stated one.

    Raises Unavailable where no source has that instance.
    """
    hourly = options.usd_per_hour or described_usd_per_hour
    source = f"${hourly:g} an hour, as {'given' if options.usd_per_hour else 'the target says'}"
    if options.instance is not None:
        from deploy.instance_price import InstancePrices

        try:
            prices = InstancePrices(live=not options.no_live)
            price = prices.find(options.instance, options.region, options.pricing)
        except Unavailable as error:
            flag = "--usd_per_hour, in place of --instance,"
            raise Unavailable(f"{error}; {flag} states one") from error
        hourly, source = price.usd_per_hour, str(price)
    if not hourly:
        return None
    return Stated(
        Rates(
            hourly,
            usd_per_kwh=options.usd_per_kwh,
            usd_per_gb_to_target=options.usd_per_gb_up,
            usd_per_gb_from_target=options.usd_per_gb_down,
        ),
        source,
    )


@dataclass(frozen=True)
class Aims:
    """What the user wants of every text of a run."""

    wish: Wish
    terms: Terms | None  # None where nothing is priced
    # drafting has a small price of its own, since nobody says what its energy costs
    battery: bool = True

    @property
    def unsteered(self) -> str:
        """Why all positions of the knob --cs ask for the same; empty where they differ."""
        if self.terms is None:
            return f"without a price of the target there is only speed: {UNPRICED}"
        try:
            tariff = self.terms.tariff(self.wish.objective)
        except InvalidRequest as error:
            return str(error)
        if tariff != SPEED.times(tariff.wall):
            return ""
        return (
            f"{self.wish.objective} is proportional to time here, so every position of --cs asks "
            "for the same: prices of electricity and traffic would tell them apart"
        )

    def prices(self, known: Knowledge) -> Prices:
        """Prices for one row of the draft."""
        if self.terms is None or self.wish.speed_alone:
            return Prices(battery=self.battery)
        expected = Effort(known.target.seconds(1, 1), known.draft.seconds(1), MESSAGE_BYTES)
        cost = self.terms.tariff(self.wish.objective)
        guess = expected if expected.wall else Effort(1.0, 1.0, MESSAGE_BYTES)
        return SteeredPrices(battery=self.battery, wish=self.wish, cost=cost, expected=guess)


SPEED_ALONE = Aims(Wish(), None)
"""The aims of a user who asks for nothing."""


def read_aims(options: GoalOptions, rates: Rates | None) -> Aims:
    """The aims of these options. Raises InvalidRequest where the wish needs a price that nobody has
    stated, and for a position of --cs where all ask for the same.
    """
    wish = read_wish(options, rates)
    note = fallback_note(options, rates, wish)
    if note is not None:
        say(f"note: {note}")
    terms = read_terms(options, rates, wish)
    if terms is not None and not wish.speed_alone:
        terms.tariff(wish.objective)  # before anything is loaded: whether it can be computed
    aims = Aims(wish, terms, battery=options.draft_watts is None)
    if wish.weight and aims.unsteered:
        raise InvalidRequest(aims.unsteered)
    return aims
