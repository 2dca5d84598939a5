"""`outrider deploy prices`: what an hour of an instance costs, with source and day."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
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
    """use the bundled prices; do not query AWS"""
    tokens_per_second: Annotated[float, Gt(0)] | None = None
    """show dollars per million tokens at this speed, the whole instance being paid"""
    as_json: bool = Field(default=False, alias="json")
    """one JSON list on stdout"""


def run(options: PricesOptions) -> int:
    """Print the prices. Returns 1 without a price of the region: people then get the bundled ones
    of another region, labelled as such, and programs (--json) nothing.
    """
    prices, found, refused = InstancePrices(live=not options.no_live), list[Price](), list[str]()
    names = options.instance.split(",") if options.instance else list(bundled_prices().types)
    for name in names:
        try:
            found.append(prices.find(name, options.region, options.pricing))
        except NoPrice as error:
            refused.append(str(error))
    if found or options.instance:
        print(*refused, sep="\n", end="\n" * bool(refused), file=sys.stderr)
    else:
        print(f"{refused[0]} (nor for {len(refused) - 1} other types)", file=sys.stderr)
    if options.as_json:
        if found:
            _print_json(found, options.tokens_per_second)
    elif found:
        _print_table(found, options.tokens_per_second)
    elif elsewhere := bundled_elsewhere(names, options):
        print("the bundled prices of another region, for comparison:")
        _print_table(elsewhere, options.tokens_per_second)
    return 0 if found else FAILED


def bundled_elsewhere(names: Sequence[str], options: PricesOptions) -> list[Price]:
    """The bundled on-demand prices of these types, where another region's were requested."""
    table = bundled_prices()
    if options.region == table.region or options.pricing != "on-demand":
        return []
    known = [name for name in names if name in table.types and table.types[name].usd_per_hour]
    return [InstancePrices(live=False).find(name, table.region) for name in known]


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
    """A table of at most 80 columns, and below it each source once."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    extra = [] if speed is None else ["$/M tokens"]
    sources = list(dict.fromkeys(f"{price.source}, {price.as_of}" for price in prices))
    marks = [f"({number})" if len(sources) > 1 else "" for number in range(1, len(sources) + 1)]
    table = Table("instance", "accelerators", "$/h", *extra, *[""] * (len(sources) > 1))
    table.box, table.pad_edge = box.SIMPLE_HEAD, False
    known = bundled_prices().types
    for price in prices:
        name = price.instance_type
        cells = [name, known[name].accelerators if name in known else ""]
        cells.append(f"{price.usd_per_hour:.8g}")
        if speed is not None:
            cells.append(f"{_per_million(price, speed):.4f}")
        if len(sources) > 1:
            cells.append(marks[sources.index(f"{price.source}, {price.as_of}")])
        table.add_row(*cells)
    at = "" if speed is None else f", {speed:g} tokens/s"
    print(f"{prices[0].region}, {prices[0].market}{at}")
    Console(width=80).print(table)
    for mark, source in zip(marks, sources, strict=True):
        print(textwrap.fill(f"{mark or 'source:'} {source}", 80, subsequent_indent="    "))
