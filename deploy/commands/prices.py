"""`outrider deploy prices`: what targets cost on EC2, with source and date."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt
from pydantic import Field

from deploy.ec2_prices import InstanceOffer, Price, PriceFile, Pricing, TransferPrice
from deploy.pricing import PriceChain, Unpriced, open_prices
from inference.command import FAILED
from inference.cost.accounting import hire_usd
from inference.errors import InvalidRequest
from inference.json_file import read_json
from outrider.options.group import Shown
from outrider.options.values import File
from outrider.options.verb import VerbOptions

_ACCELERATORS = Path(__file__).parents[1] / "data" / "accelerators.json"
EXAMPLES = """examples:
  outrider deploy prices                          every type that a target may run on, in us-east-1
  outrider deploy prices --instance trn1.2xlarge --pricing spot --region us-west-2
  outrider deploy prices --instance trn1.2xlarge --no_live --tokens_per_second 40
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
    pricing: Literal["on-demand", "spot", "capacity-block"] | None = None
    """default: on-demand, else capacity-block; and spot"""
    price_file: File | None = None
    """your own prices, asked first; its form is that of deploy/data/ec2_prices.json"""
    no_live: bool = False
    """ask neither AWS nor the cache"""
    tokens_per_second: Annotated[float, Gt(0)] | None = None
    """show dollars per million tokens at this speed, the whole instance being paid"""
    as_json: bool = Field(default=False, alias="json")
    """one JSON object on stdout, in the form of a price file"""

    @property
    def types(self) -> list[str]:
        """The instance types that are asked for."""
        return self.instance.split(",") if self.instance else list(accelerators())


OPTIONS = PricesOptions


@dataclass
class PricesShown:
    """The prices that are printed."""

    prices: list[Price] = field(default_factory=list)
    transfer: TransferPrice | None = None
    missing: list[str] = field(default_factory=list)  # what has no price
    reasons: dict[str, None] = field(default_factory=dict)  # why sources were passed over


def run(options: PricesOptions) -> int:
    """Print the prices. Returns 1 without a single one."""
    speed = options.tokens_per_second
    own = None if options.price_file is None else Path(options.price_file)
    shown = collect(open_prices(own, live=not options.no_live), options)
    (_print_json if options.as_json else _print_table)(shown, speed)
    if shown.missing:
        print(f"no price: {', '.join(shown.missing)}", file=sys.stderr)
    for reason in shown.reasons:
        print(f"  {reason}", file=sys.stderr)
    return 0 if shown.prices else FAILED


def accelerators() -> dict[str, str]:
    """The instance types that a target may run on, with their accelerators."""
    return read_json(_ACCELERATORS, InvalidRequest).texts()


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

    for instance_type in options.types:
        if options.pricing is not None:
            ask(instance_type, Pricing(options.pricing))
            continue
        _ = ask(instance_type, Pricing.ON_DEMAND) or ask(instance_type, Pricing.CAPACITY_BLOCK)
        ask(instance_type, Pricing.SPOT)
    try:
        shown.transfer = prices.transfer(options.region)
    except Unpriced as error:
        shown.missing.append("traffic")
        shown.reasons |= dict.fromkeys(error.reasons)
    return shown


def _print_json(shown: PricesShown, tokens_per_second: float | None) -> None:
    """Print a price file, with dollars per million tokens beside the prices, in their order."""
    costs = None
    if tokens_per_second is not None:
        seconds = 1e6 / tokens_per_second
        costs = tuple(hire_usd(seconds, price.usd_per_hour) for price in shown.prices)
    transfers = () if shown.transfer is None else (shown.transfer,)
    print(json.dumps(PriceFile(1, tuple(shown.prices), transfers, costs).plain(), indent=1))


def _print_table(shown: PricesShown, tokens_per_second: float | None) -> None:
    """Print a table for people."""
    from rich.console import Console
    from rich.table import Table

    extra = [] if tokens_per_second is None else [f"$/M tokens at {tokens_per_second:g}/s"]
    table = Table("instance", "accelerators", "region", "pricing", "$/h", *extra, "as of", "source")
    known = accelerators()
    for price in shown.prices:
        cells = [
            price.instance_type,
            known.get(price.instance_type, ""),
            price.region,
            price.pricing.value,
            f"{price.usd_per_hour:.8g}",
        ]
        if tokens_per_second is not None:
            cells.append(f"{hire_usd(1e6 / tokens_per_second, price.usd_per_hour):.4f}")
        doubt = " (low confidence)" if price.confidence == "low" else ""
        table.add_row(*cells, str(price.as_of), price.source + doubt)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    if shown.transfer is not None:
        transfer = shown.transfer
        rates = f"${transfer.usd_per_gb_in:g} a GB in, ${transfer.usd_per_gb_out:g} a GB out"
        said = f"({transfer.source}, {transfer.as_of})"
        print(f"traffic of {transfer.region} with the internet: {rates} {said}")
