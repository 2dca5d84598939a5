"""`outrider deploy prices`: what an hour of an instance costs, with source and day."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt
from pydantic import Field

from deploy.instance_price import InstancePrices, NoPrice, Price, bundled_prices
from inference.command import FAILED
from inference.cost.billing import hire_usd
from inference.flags.command_line import CommandOptions
from inference.flags.group import Shown

EXAMPLES = """examples:
  outrider deploy prices                          every type that a target may run on, in us-east-1
  outrider deploy prices --instance trn1.2xlarge --pricing spot --region us-west-2
  outrider deploy prices --instance trn1.2xlarge --no_live --tokens_per_second 40
"""


class PricesOptions(CommandOptions, title="prices"):
    """Prices from AWS (boto3's credentials), else those of the bundled table."""

    BARE: ClassVar = "instance"

    instance: Annotated[str, Shown("TYPE,TYPE")] | None = None
    """instance types (default: every type that a target may run on)"""
    region: str = "us-east-1"
    """prices of other regions are never guessed"""
    pricing: Literal["on-demand", "spot"] = "on-demand"
    """how the instance is paid"""
    no_live: bool = False
    """the bundled price: ask nobody"""
    tokens_per_second: Annotated[float, Gt(0)] | None = None
    """show dollars per million tokens at this speed, the whole instance being paid"""
    as_json: bool = Field(default=False, alias="json")
    """one JSON list on stdout"""


def run(options: PricesOptions) -> int:
    """Print the prices. Returns 1 without a single one."""
    prices, found = InstancePrices(live=not options.no_live), list[Price]()
    for name in options.instance.split(",") if options.instance else bundled_prices().types:
        try:
            found.append(prices.find(name, options.region, options.pricing))
        except NoPrice as error:
            print(error, file=sys.stderr)
    (_print_json if options.as_json else _print_table)(found, options.tokens_per_second)
    return 0 if found else FAILED


def _per_million(price: Price, speed: float) -> float:
    """US dollars per million tokens at so many a second."""
    return hire_usd(1e6 / speed, price.usd_per_hour)


def _print_json(prices: list[Price], speed: float | None) -> None:
    rows = [asdict(price) | {"as_of": str(price.as_of)} for price in prices]
    if speed is not None:
        for row, price in zip(rows, prices, strict=True):
            row["usd_per_million_tokens"] = _per_million(price, speed)
    print(json.dumps(rows, indent=1))


def _print_table(prices: list[Price], speed: float | None) -> None:
    from rich.console import Console
    from rich.table import Table

    extra = [] if speed is None else [f"$/M tokens at {speed:g}/s"]
    table = Table("instance", "accelerators", "region", "pricing", "$/h", *extra, "as of", "source")
    known = bundled_prices().types
    for price in prices:
        name = price.instance_type
        cells = [name, known[name].accelerators if name in known else "", price.region]
        cells += [price.market, f"{price.usd_per_hour:.8g}"]
        if speed is not None:
            cells.append(f"{_per_million(price, speed):.4f}")
        table.add_row(*cells, str(price.as_of), price.source)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
