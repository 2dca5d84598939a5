"""What the user wants of drafting: speed, cost or a limit on one, and the prices that
cost is made of.
"""

from __future__ import annotations

from typing import NamedTuple

from inference.cost.accounting import Rates
from inference.cost.objective import PER_MILLION, Terms, Wish, read_knob
from inference.errors import InvalidRequest
from outrider.options import Options

ENERGIES = ("energy_total", "draft_energy", "target_energy")

UNPRICED = "give --usd_per_hour or --instance, or ask a target that was started with --usd_per_hour"


class Stated(NamedTuple):
    """What is paid, and who says so, with the day where it is known."""

    rates: Rates
    source: str


def read_wish(options: Options, rates: Rates | None) -> Wish:
    """Of --cs, --objective and the limits; raises InvalidRequest where they contradict each other.

    Cost is the total where all its prices are stated, else what the target's hours cost, unless
    --objective says.
    """
    weight, limits = (
        read_knob(options.cs),
        (options.min_tps, options.max_usd_per_1m, options.max_joules_per_token),
    )
    if sum(limit is not None for limit in limits) > 1:
        raise InvalidRequest(
            "one limit at a time: --min_tps, --max_usd_per_1m or --max_joules_per_token"
        )
    if weight and any(limit is not None for limit in limits):
        raise InvalidRequest("--cs weighs speed against cost, a limit decides it: give one of them")
    cost = "total_cost" if rates is not None and not _unstated(options, rates) else "api_cost"
    objective = options.objective or (
        "energy_total" if options.max_joules_per_token is not None else cost
    )
    if options.max_joules_per_token is not None and objective not in ENERGIES:
        raise InvalidRequest(
            f"--max_joules_per_token limits an energy, and --objective is {objective}"
        )
    if options.max_usd_per_1m is not None and objective not in ("total_cost", "api_cost"):
        raise InvalidRequest(f"--max_usd_per_1m limits a cost, and --objective is {objective}")
    limit = (
        options.max_usd_per_1m / PER_MILLION
        if options.max_usd_per_1m is not None
        else options.max_joules_per_token
    )
    return Wish(objective, weight, options.min_tps, limit)


def read_terms(options: Options, rates: Rates | None, wish: Wish) -> Terms | None:
    """What bills of this run are made of; None where nothing is priced and nothing need be.

    Raises InvalidRequest where the wish is counted in what nobody has stated.
    """
    if rates is None and wish.speed_alone:
        return None
    if rates is None and wish.objective not in (*ENERGIES, "latency"):
        raise InvalidRequest(f"{wish.objective} needs a price of the target: {UNPRICED}")
    return Terms(
        rates or Rates(0.0), options.target_share, options.draft_watts, options.target_watts
    )


def fallback_note(options: Options, rates: Rates | None, wish: Wish) -> str | None:
    """What to say where the target's hours alone are weighed although the user has stated other
    prices; None where there is nothing to say.
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


def _unstated(options: Options, rates: Rates) -> list[str]:
    """Flags of the prices that the total lacks."""
    parts = {
        "--usd_per_kwh": rates.usd_per_kwh,
        "--draft_watts": options.draft_watts,
        "--usd_per_gb_up": rates.usd_per_gb_to_target,
        "--usd_per_gb_down": rates.usd_per_gb_from_target,
    }
    return [flag for flag, value in parts.items() if value is None]


def read_prices(options: Options, described_usd_per_hour: float) -> Stated | None:
    """The prices of --usd_per_hour, of --instance, or of the target's own word; None where nobody
    has stated one.

    Raises deploy.pricing.Unpriced where no source has that instance.
    """
    up, down = options.usd_per_gb_up, options.usd_per_gb_down
    hourly = options.usd_per_hour or described_usd_per_hour
    source = f"${hourly:g} an hour, as {'given' if options.usd_per_hour else 'the target says'}"
    if options.instance is not None:
        from deploy.price import Offer, Pricing
        from deploy.pricing import open_prices

        prices = open_prices(live=not options.no_live)
        price = prices.quote(
            Offer(options.instance, options.region, Pricing(options.pricing))
        ).price
        hourly, source = price.usd_per_hour, str(price)
        if up is None or down is None:
            listed = prices.transfer(options.region)
            unstated = [f"${listed.usd_per_gb_in:g} a GB to it"] * (up is None) + [
                f"${listed.usd_per_gb_out:g} a GB from it"
            ] * (down is None)
            source += f"; {' and '.join(unstated)} ({listed.source}, {listed.as_of})"
            up, down = (
                listed.usd_per_gb_in if up is None else up,
                listed.usd_per_gb_out if down is None else down,
            )
    if not hourly:
        return None
    return Stated(
        Rates(
            hourly,
            usd_per_kwh=options.usd_per_kwh,
            usd_per_gb_to_target=up,
            usd_per_gb_from_target=down,
        ),
        source,
    )
