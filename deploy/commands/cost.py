"""`outrider deploy cost`: what a target's run has cost so far, line by line."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import Field

from deploy.aws import Aws
from deploy.bill import RunBill, hourly
from deploy.commands.options import NamedOptions
from deploy.deployment import stack_name
from deploy.ec2_prices import InstanceOffer, NoPrice, Pricing
from deploy.pricing import PriceChain, open_prices
from deploy.run_bill import Run, bill_of, run_of
from deploy.running_instance import describe_instance
from deploy.stack import TargetStack
from inference.errors import InvalidRequest
from outrider.options.values import File

EXAMPLES = """examples:
  outrider deploy cost demo
  outrider deploy cost demo --json
"""


class CostOptions(NamedOptions, title="target"):
    """Say what a target's run has cost so far, from AWS's records of it, and what an hour costs."""

    price_file: File | None = None
    """your own prices, asked first; its form is that of deploy/data/ec2_prices.json"""
    no_live: bool = False
    """ask AWS for no prices: those of the bundled snapshot"""
    as_json: bool = Field(default=False, alias="json")
    """one JSON object on stdout"""


OPTIONS = CostOptions


def run(options: CostOptions) -> int:
    """Print the bill. Returns 0."""
    aws = options.aws()
    own = None if options.price_file is None else Path(options.price_file)
    prices = open_prices(own, live=not options.no_live)
    of_run = _find_run(aws, options.name)
    so_far = bill_of(aws, of_run, prices, live=not options.no_live)
    if options.as_json:
        print(json.dumps(_plain(options.name, of_run, so_far), indent=1))
        return 0
    instance = of_run.instance
    print(
        f"{options.name}: {instance.type} in {instance.zone}, {instance.state}, "
        f"{of_run.seconds / 3600:.3f} h since {instance.launched:%Y-%m-%d %H:%M:%S} UTC"
    )
    print(*(f"  {line}" for line in so_far.lines), sep="\n")
    for unknown in so_far.unknown:
        print(f"  not in the sum: {unknown}")
    least = "at least " if so_far.unknown else ""
    print(f"so far: {least}${so_far.usd:.4f}")
    if instance.alive:
        print(f"an hour: {_an_hour(aws, of_run, prices)}; ends at {instance.ends_at or 'no time'}")
    return 0


def _find_run(aws: Aws, name: str) -> Run:
    """The present run of a target. Raises InvalidRequest where it has no instance."""
    state = TargetStack(aws, stack_name(name)).state()
    instance_id = state.instance_id if state else None
    instance = describe_instance(aws, instance_id) if instance_id else None
    if state is None or instance is None:
        raise InvalidRequest(
            f"{name} has no instance in {aws.region}, so nothing of it is paid but what its bucket "
            "holds (what an earlier run cost: AWS's Billing console)"
        )
    return run_of(state, instance)


def _an_hour(aws: Aws, of_run: Run, prices: PriceChain) -> str:
    instance = of_run.instance
    offer = InstanceOffer(instance.type, aws.region, Pricing(instance.market))
    try:
        price = prices.quote(offer).price
    except NoPrice as error:
        return str(error)
    services = prices.services(aws.region)
    return f"${hourly(price, services, of_run.volume_gib, of_run.addresses).usd:.4f}"


def _plain(name: str, of_run: Run, bill: RunBill) -> dict[str, object]:
    return {
        "target": name,
        "instance": of_run.instance.type,
        "launched": of_run.instance.launched.isoformat(),
        "seconds": of_run.seconds,
        "lines": [line._asdict() for line in bill.lines],
        "unknown": list(bill.unknown),
        "usd": bill.usd,
    }
