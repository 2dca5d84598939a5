"""`outrider deploy prices`: hourly prices of an instance, with their source and date."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, ClassVar

from pydantic import Field

from deploy.instance.kind import Market
from deploy.instance.price import InstancePrices, NoPrice, Price, bundled_prices
from inference.command import FAILED
from inference.flags.command_line import CommandOptions
from inference.flags.group import Metavar

EXAMPLES = """examples:
  outrider deploy prices                          every type that can serve a target, in us-east-1
  outrider deploy prices --instance trn1.2xlarge --spot --region us-west-2
"""


class PricesOptions(CommandOptions, title="prices"):
    """Prices from AWS (boto3's credentials), else those of the bundled table."""

    BARE: ClassVar = "instance"

    instance: Annotated[str, Metavar("TYPE,TYPE")] | None = None
    """instance types (default: all types that can serve a target)"""
    region: str = "us-east-1"
    """AWS region"""
    spot: bool = False
    """spot prices in place of on-demand ones"""
    as_json: bool = Field(default=False, alias="json")
    """one JSON list on stdout"""


def run(options: PricesOptions) -> int:
    """Print the prices. Returns 1 if the region has none; the bundled ones of another region are
    then printed, labelled as such, but nothing with --json.
    """
    prices, priced, refusals = InstancePrices(), list[Price](), list[str]()
    names = options.instance.split(",") if options.instance else list(bundled_prices().types)
    market: Market = "spot" if options.spot else "on-demand"
    for name in names:
        try:
            priced.append(prices.find(name, options.region, market))
        except NoPrice as error:
            refusals.append(str(error))
    if priced or options.instance:
        print(*refusals, sep="\n", end="\n" * bool(refusals), file=sys.stderr)
    else:
        print(f"{refusals[0]} (nor for {len(refusals) - 1} other types)", file=sys.stderr)
    if options.as_json:
        if priced:
            rows = [asdict(price) | {"as_of": str(price.as_of)} for price in priced]
            print(json.dumps(rows, indent=1))
    elif priced:
        _print_table(priced)
    elif elsewhere := bundled_elsewhere(names, options):
        print("the bundled prices of another region, for comparison:")
        _print_table(elsewhere)
    return 0 if priced else FAILED


def bundled_elsewhere(names: Sequence[str], options: PricesOptions) -> list[Price]:
    """Return the bundled on-demand prices of these types, if another region was requested."""
    table = bundled_prices()
    if options.region == table.region or options.spot:
        return []
    priced = [name for name in names if name in table.types and table.types[name].usd_per_hour]
    return [InstancePrices(live=False).find(name, table.region) for name in priced]


def _print_table(prices: list[Price]) -> None:
    """Print a table of at most 80 columns, followed by each source once."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table("instance", "accelerators", "$/h", box=box.SIMPLE_HEAD, pad_edge=False)
    types, sources = bundled_prices().types, dict[str, list[str]]()
    for price in prices:
        name = price.instance_type
        accelerators = types[name].accelerators if name in types else ""
        table.add_row(name, accelerators, f"{price.usd_per_hour:.8g}")
        sources.setdefault(f"{price.source}, {price.as_of}", []).append(name)
    print(f"{prices[0].region}, {prices[0].market}")
    Console(width=80).print(table)
    for source, names in sources.items():
        of = f" of {', '.join(names)}" if len(sources) > 1 else ""
        print(textwrap.fill(f"source{of}: {source}", 80, subsequent_indent="    "))
