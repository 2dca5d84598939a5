"""`outrider deploy prices`: what targets cost on EC2, with source and date."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt
from pydantic import Field

from deploy.ec2_prices import (
    InstanceOffer,
    Price,
    PriceFile,
    Pricing,
    Service,
    ServiceOffer,
    ServicePrice,
)
from deploy.instance_types import bundled_types
from deploy.pricing import PriceChain, Unpriced, open_prices
from inference.command import FAILED
from inference.cost.accounting import hire_usd
from outrider.options.group import Shown
from outrider.options.values import File
from outrider.options.verb import VerbOptions

EXAMPLES = """examples:
  outrider deploy prices                          every type that a target may run on, in us-east-1
  outrider deploy prices --instance trn1.2xlarge --pricing spot --region us-west-2
  outrider deploy prices --instance trn1.2xlarge --no_live --tokens_per_second 40
  outrider deploy prices --instance trn1.2xlarge --pricing savings-3yr --gb_out 500
"""


class PricesOptions(VerbOptions, title="prices"):
    """Prices from --price_file, else from AWS (boto3's credentials), else what AWS said within a
    day, else the bundled snapshot.
    """

    BARE: ClassVar = "instance"

    instance: Annotated[str, Shown("TYPE,TYPE")] | None = None
    """instance types (default: every type that a target may run on)"""
    region: str = "us-east-1"
    """prices of other regions are never guessed"""
    pricing: Literal["on-demand", "spot", "capacity-block", "savings-1yr", "savings-3yr"] | None = (
        None
    )
    """default: on-demand, else capacity-block; and spot"""
    price_file: File | None = None
    """your own prices, asked first; its form is that of deploy/data/ec2_prices.json"""
    no_live: bool = False
    """ask neither AWS nor the cache"""
    tokens_per_second: Annotated[float, Gt(0)] | None = None
    """show dollars per million tokens at this speed, the whole instance being paid"""
    gb_out: Annotated[float, Ge(0)] | None = None
    """show dollars for so many GB to the internet in a month, by tiers"""
    as_json: bool = Field(default=False, alias="json")
    """one JSON object on stdout, in the form of a price file"""


OPTIONS = PricesOptions


@dataclass
class PricesShown:
    """The prices that are printed."""

    prices: list[Price] = field(default_factory=list)
    services: list[ServicePrice] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # what has no price
    reasons: dict[str, None] = field(default_factory=dict)  # why sources were passed over


def run(options: PricesOptions) -> int:
    """Print the prices. Returns 1 without a single one."""
    own = None if options.price_file is None else Path(options.price_file)
    shown = collect(open_prices(own, live=not options.no_live), options)
    (_print_json if options.as_json else _print_table)(shown, options)
    if shown.missing:
        print(f"no price: {', '.join(shown.missing)}", file=sys.stderr)
    for reason in shown.reasons:
        print(f"  {reason}", file=sys.stderr)
    return 0 if shown.prices else FAILED


def collect(prices: PriceChain, options: PricesOptions) -> PricesShown:
    """The price of each type under the pricing that is asked for. By default these are two prices:
    on demand (else as a capacity block), and spot.
    """
    shown = PricesShown()

    def ask(instance_type: str, pricing: Pricing) -> bool:
        try:
            price, passed_over = prices.quote(InstanceOffer(instance_type, options.region, pricing))
        except Unpriced as error:
            shown.missing.append(f"{instance_type} {pricing.value}")
            shown.reasons |= dict.fromkeys(error.reasons)
            return False
        shown.prices.append(price)
        shown.reasons |= dict.fromkeys(passed_over)
        return True

    for instance_type in options.instance.split(",") if options.instance else bundled_types():
        if options.pricing is not None:
            ask(instance_type, Pricing(options.pricing))
            continue
        _ = ask(instance_type, Pricing.ON_DEMAND) or ask(instance_type, Pricing.CAPACITY_BLOCK)
        ask(instance_type, Pricing.SPOT)
    for service in Service:
        try:
            shown.services.append(prices.service(ServiceOffer(service, options.region)))
        except Unpriced as error:
            shown.missing.append(service.value)
            shown.reasons |= dict.fromkeys(error.reasons)
    return shown


def _print_json(shown: PricesShown, options: PricesOptions) -> None:
    """Print a price file, with dollars per million tokens beside the prices, in their order."""
    costs = None
    if options.tokens_per_second is not None:
        seconds = 1e6 / options.tokens_per_second
        costs = tuple(hire_usd(seconds, price.usd_per_hour) for price in shown.prices)
    file = PriceFile(1, tuple(shown.prices), tuple(shown.services), costs)
    print(json.dumps(file.plain(), indent=1))


def _print_table(shown: PricesShown, options: PricesOptions) -> None:
    """Print a table for people."""
    from rich.console import Console
    from rich.table import Table

    speed = options.tokens_per_second
    extra = [] if speed is None else [f"$/M tokens at {speed:g}/s"]
    table = Table("instance", "accelerators", "region", "pricing", "$/h", *extra, "as of", "source")
    known = bundled_types()
    for price in shown.prices:
        name = price.instance_type
        cells = [name, known[name].accelerators if name in known else "", price.region]
        cells += [price.pricing.value, f"{price.usd_per_hour:.8g}"]
        if speed is not None:
            cells.append(f"{hire_usd(1e6 / speed, price.usd_per_hour):.4f}")
        doubt = " (low confidence)" if price.confidence == "low" else ""
        table.add_row(*cells, str(price.as_of), price.source + doubt)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    for service in shown.services:
        tiers = ", ".join(f"${tier.usd:g} beyond {tier.begin:g}" for tier in service.tiers[1:])
        rates = f"${service.tiers[0].usd:g}{tiers and f', {tiers}'} per {service.service.unit}"
        print(f"{service.key} of {service.region}: {rates} ({service.said})")
        if service.service is Service.TRAFFIC_OUT and options.gb_out is not None:
            print(f"  {options.gb_out:g} GB in a month: ${service.usd(options.gb_out):g}")
