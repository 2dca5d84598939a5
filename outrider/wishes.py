"""What the user wants of adaptive drafting: speed, cost or a limit on one, and the prices that cost is made of."""

from __future__ import annotations

from inference.cost import Rates
from inference.errors import InvalidRequest
from inference.objective import PER_MILLION, Terms, Wish, read_knob
from outrider.options import Options

ENERGIES = ("energy_total", "draft_energy", "target_energy")

UNPRICED = "give --usd_per_hour or --instance, or ask a target that was started with --usd_per_hour"


def read_wish(options: Options, rates: Rates | None) -> Wish:
    """Of --cs, --objective and the limits; raises InvalidRequest where they contradict each other.

    Cost is the total where all its prices are stated, else what the target's hours cost, unless --objective says.
    """
    weight, limits = read_knob(options.cs), (options.min_tps, options.max_usd_per_1m, options.max_joules_per_token)
    if sum(limit is not None for limit in limits) > 1:
        raise InvalidRequest("one limit at a time: --min_tps, --max_usd_per_1m or --max_joules_per_token")
    if weight and any(limit is not None for limit in limits):
        raise InvalidRequest("--cs weighs speed against cost, a limit decides it: give one of them")
    priced = rates is not None and None not in (rates.usd_per_kwh, rates.usd_per_gb_to_target, rates.usd_per_gb_from_target, options.draft_watts)
    cost = "total_cost" if priced else "api_cost"
    objective = options.objective or ("energy_total" if options.max_joules_per_token is not None else cost)
    if options.max_joules_per_token is not None and objective not in ENERGIES:
        raise InvalidRequest(f"--max_joules_per_token limits an energy, and --objective is {objective}")
    if options.max_usd_per_1m is not None and objective not in ("total_cost", "api_cost"):
        raise InvalidRequest(f"--max_usd_per_1m limits a cost, and --objective is {objective}")
    limit = options.max_usd_per_1m / PER_MILLION if options.max_usd_per_1m is not None else options.max_joules_per_token
    return Wish(objective, weight, options.min_tps, limit)


def read_terms(options: Options, rates: Rates | None, wish: Wish) -> Terms | None:
    """What bills of this run are made of; None where nothing is priced and nothing need be.

    Raises InvalidRequest where the wish is counted in what nobody has stated.
    """
    if rates is None and wish.speed_alone:
        return None
    if rates is None and wish.objective not in (*ENERGIES, "latency"):
        raise InvalidRequest(f"{wish.objective} needs a price of the target: {UNPRICED}")
    return Terms(rates or Rates(0.0), options.target_share, options.draft_watts, options.target_watts)


def read_rates(options: Options, described_usd_per_hour: float) -> Rates | None:
    """The prices of --usd_per_hour, of --instance, or of the target's own word; None where nobody has stated one.

    Raises deploy.pricing.Unpriced where no source has that instance.
    """
    up, down = options.usd_per_gb_up, options.usd_per_gb_down
    hourly = options.usd_per_hour or described_usd_per_hour
    if options.instance is not None:
        from deploy.price import Offer, Pricing
        from deploy.pricing import open_prices

        prices = open_prices(live=not options.no_live)
        hourly = prices.quote(Offer(options.instance, options.region, Pricing(options.pricing))).price.usd_per_hour
        transfer = prices.transfer(options.region)
        up, down = transfer.usd_per_gb_in if up is None else up, transfer.usd_per_gb_out if down is None else down
    if not hourly:
        return None
    return Rates(hourly, usd_per_kwh=options.usd_per_kwh, usd_per_gb_to_target=up, usd_per_gb_from_target=down)
