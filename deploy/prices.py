"""The hourly price of an EC2 instance with its source and date: from AWS by boto3, otherwise from
the bundled table; and `outrider deploy prices`, which prints prices. Nothing in this module buys,
starts or changes anything.

Written against botocore's models and public replies; not yet run against AWS.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from statistics import median
from typing import Annotated, ClassVar

from pydantic import Field

from compile.aws import Aws, AwsDown, check_region
from deploy.ec2 import RunningInstance
from deploy.instance import Market
from inference.command import FAILED, say
from inference.cost.billing import hire_usd
from inference.errors import InvalidRequest, MissingExtra, OutriderError, Unavailable
from inference.files.json_file import Positive, Record, Text, read_json, read_record
from inference.flags.command_line import CommandOptions
from inference.flags.group import Metavar

PRICE_LIST_REGION = "us-east-1"
"""Region of the price list service. Three regions have it, each with the prices of all regions."""

ON_DEMAND_TERMS = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "capacitystatus": "Used",
    "preInstalledSw": "NA",
    "marketoption": "OnDemand",
    "licenseModel": "No License required",
    "operation": "RunInstances",
}
"""Attributes that select one row of the price list. Without marketoption, an instance sold as
capacity blocks also has a row at $0.00.
"""

_LINUX = "Linux/UNIX"
_SPOT_PRODUCTS = (_LINUX, "Linux/UNIX (Amazon VPC)")
_BUNDLED = Path(__file__).parent / "data" / "ec2_prices.json"


class NoPrice(Unavailable):
    """The price is not known. The message gives the reason."""


@dataclass(frozen=True)
class Price:
    """The price of one hour of an instance with Linux and shared tenancy."""

    instance_type: str
    region: str
    market: Market
    usd_per_hour: float
    as_of: date  # date of the price
    source: str  # description of the source

    def __str__(self) -> str:
        of = f"{self.instance_type} in {self.region}, {self.market}"
        return f"${self.usd_per_hour:g} an hour for {of} ({self.source}, {self.as_of})"


@dataclass(frozen=True)
class BundledType(Record):
    """An instance type that a target may run on."""

    accelerators: Text  # Trainium2: EC2 reports 512 GiB, the Neuron documentation 96
    usd_per_hour: Positive | None = None  # on demand; None: capacity blocks and spot only


@dataclass(frozen=True)
class PriceTable(Record):
    """On-demand prices of one region on one date."""

    region: Text
    as_of: date
    source: Text
    types: dict[Text, BundledType]


def bundled_prices() -> PriceTable:
    """Return the bundled price table."""
    return read_record(read_json(_BUNDLED, InvalidRequest), PriceTable)


class InstancePrices:
    """Prices from AWS, otherwise from the bundled table.

    A service that rejects the credentials or cannot be reached is queried once per region.

    live: False to use only the bundled table
    """

    def __init__(self, *, live: bool = True) -> None:
        self._account = functools.cache(Aws)
        self._live = live
        self._refusals = dict[tuple[Market, str], str]()  # by market and queried region
        self._bundled = bundled_prices()

    def find(self, instance_type: str, region: str, market: Market = "on-demand") -> Price:
        """Return the price of an instance. Logs if the bundled table is used instead of AWS.

        Raises NoPrice, and InvalidRequest for a malformed type or region.
        """
        check_region(region)
        if not re.fullmatch(r"[a-z][a-z0-9-]*\.[a-z0-9-]+", instance_type):
            raise InvalidRequest(f"{instance_type!r} is no instance type, such as trn1.2xlarge")
        if market == "capacity-block":
            raise NoPrice(f"{instance_type}: a capacity block was paid beforehand")
        if market == "on-demand" and instance_type.startswith("trn2"):  # whatever the list says
            raise NoPrice(f"{instance_type} is sold as capacity blocks and spot only")
        service = (market, region if market == "spot" else PRICE_LIST_REGION)
        why = self._refusals.get(service, "") if self._live else "AWS was not queried"
        if why:
            return self._find_bundled(instance_type, region, market, why)
        try:
            ask = self._spot if market == "spot" else self._on_demand
            usd, source = ask(instance_type, region)
        except OutriderError as error:
            if isinstance(error, MissingExtra | AwsDown):
                self._refusals[service] = str(error)
            price = self._find_bundled(instance_type, region, market, str(error))
            say(f"note: the bundled price of {price.as_of} holds: {error}")
            return price
        return Price(instance_type, region, market, usd, _now().date(), source)

    def _find_bundled(self, instance_type: str, region: str, market: Market, why: str) -> Price:
        table = self._bundled
        prices = {name: row.usd_per_hour for name, row in table.types.items() if row.usd_per_hour}
        if instance_type not in prices or (region, market) != (table.region, "on-demand"):
            raise NoPrice(
                f"no price for {instance_type} in {region}, {market}: {why}; the bundled table "
                f"has on-demand prices of {table.region} only, of {len(prices)} types"
            )
        usd = prices[instance_type]
        return Price(instance_type, region, market, usd, table.as_of, table.source)

    def _on_demand(self, instance_type: str, region: str) -> tuple[float, str]:
        """Return the only price in the rows, ignoring $0, other systems and other units. Raises
        NoPrice if there are several, since the one to be charged is unknown.
        """
        terms = {"instanceType": instance_type, "regionCode": region} | ON_DEMAND_TERMS
        rows = self._account(PRICE_LIST_REGION).rows(
            "pricing",
            "get_products",
            "PriceList",
            ServiceCode="AmazonEC2",
            FormatVersion="aws_v1",
            Filters=[
                {"Type": "TERM_MATCH", "Field": field, "Value": value}
                for field, value in terms.items()
            ],
        )
        rates = {
            float(rate["pricePerUnit"].get("USD", 0))
            for row in map(json.loads, rows)
            if row["product"]["attributes"].items() >= terms.items()
            for term in row["terms"].get("OnDemand", {}).values()
            for rate in term["priceDimensions"].values()
            if rate["unit"] == "Hrs"
        } - {0.0}
        if len(rates) != 1:
            several = ", ".join(f"${usd:g}" for usd in sorted(rates))
            problem = f"several on-demand prices ({several})" if rates else "no on-demand price"
            raise NoPrice(f"the price list has {problem} for {instance_type} in {region}")
        return rates.pop(), "AWS price list"

    def _spot(self, instance_type: str, region: str) -> tuple[float, str]:
        """Return the lowest current price of all zones, with a note on the zone and the median."""
        rows = self._account(region).rows(
            "ec2",
            "describe_spot_price_history",
            "SpotPriceHistory",
            InstanceTypes=[instance_type],
            ProductDescriptions=[_LINUX],
            StartTime=_now(),
        )
        zones = {
            row["AvailabilityZone"]: float(row["SpotPrice"])
            for row in sorted(rows, key=lambda row: row["Timestamp"])
            if row["ProductDescription"] in _SPOT_PRODUCTS and float(row["SpotPrice"]) > 0
        }
        if not zones:
            raise NoPrice(f"EC2 has no spot price of {instance_type} in any zone of {region}")
        usd, zone = min((usd, zone) for zone, usd in zones.items())
        middle = median(zones.values())
        note = f"{zone}, the cheapest of {len(zones)} zones, median ${middle:g}"
        return usd, f"EC2 spot history, {note}"


def cost_so_far(instance: RunningInstance, region: str) -> str:
    """Return the cost of an instance so far at today's price, or why it is not known."""
    seconds = ((None if instance.alive else instance.ended) or _now()) - instance.launched
    try:
        price = InstancePrices().find(instance.type, region, instance.market)
    except NoPrice as error:
        return f"not known: {error}"
    usd = hire_usd(seconds.total_seconds(), price.usd_per_hour)
    return f"${usd:.4f} so far for the instance alone, at {price}"


def _now() -> datetime:
    return datetime.now(UTC)


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
    table = bundled_prices()
    names = options.instance.split(",") if options.instance else list(table.types)
    market: Market = "spot" if options.spot else "on-demand"
    priced, refusals = _find(InstancePrices(), names, options.region, market)
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
    elif options.region != table.region and not options.spot:
        elsewhere, _ = _find(InstancePrices(live=False), names, table.region, "on-demand")
        if elsewhere:
            print("the bundled prices of another region, for comparison:")
            _print_table(elsewhere)
    return 0 if priced else FAILED


def _find(
    prices: InstancePrices, names: Sequence[str], region: str, market: Market
) -> tuple[list[Price], list[str]]:
    priced, refusals = list[Price](), list[str]()
    for name in names:
        try:
            priced.append(prices.find(name, region, market))
        except NoPrice as error:
            refusals.append(str(error))
    return priced, refusals


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
