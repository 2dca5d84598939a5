"""What a run costs: a line for each thing that AWS charges. Pure: measured facts and prices go in.

AWS's rules, as it publishes them: Linux instances and volumes are paid by the second, 60 at least.
On spot an hour of an instance costs what the zone's price was at its beginning. A GB is 2**30
bytes. A month is taken as 730 hours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from deploy.aws_prices import SpotPrice
from deploy.ec2_prices import Price, Pricing, Service, ServicePrice
from inference.cost.accounting import SECONDS_PER_HOUR, hire_usd

LEAST_SECONDS = 60.0
HOURS_PER_MONTH = 730.0
BYTES_PER_GB = 2**30

Services = Mapping[Service, ServicePrice]


class Line(NamedTuple):
    """One thing that is charged."""

    what: str
    amount: float
    unit: str
    usd: float
    source: str  # of its price

    def __str__(self) -> str:
        return f"{self.what}: {self.amount:.6g} {self.unit}, ${self.usd:.4f} ({self.source})"


@dataclass(frozen=True)
class RunBill:
    """All lines, and what is charged, too, but not known."""

    lines: tuple[Line, ...]
    unknown: tuple[str, ...] = ()

    @property
    def usd(self) -> float:
        """The sum of the lines; a lower bound where something is unknown."""
        return sum(line.usd for line in self.lines)


@dataclass(frozen=True)
class RunUsage:
    """What a run used beside the instance itself."""

    volume_gb_hours: float = 0.0
    address_hours: float = 0.0  # of public IPv4 addresses
    bytes_out: float | None = 0.0  # to the internet; None where nobody counted
    stored_gb_hours: float | None = 0.0  # on S3; None where nobody counted


def charged_seconds(seconds: float) -> float:
    """What is charged for an instance or a volume that was there for so long."""
    return max(seconds, LEAST_SECONDS)


def hire(price: Price, seconds: float) -> Line:
    """An instance at one price."""
    paid = charged_seconds(seconds)
    what = f"{price.instance_type}, {price.pricing.value}"
    if price.pricing is Pricing.CAPACITY_BLOCK:
        what += " (its block was paid in full beforehand)"
    return Line(what, paid / SECONDS_PER_HOUR, "h", hire_usd(paid, price.usd_per_hour), price.said)


def spot_hire(
    instance_type: str, zone: str, history: Sequence[SpotPrice], launched: datetime, seconds: float
) -> Line:
    """An instance on spot: each hour since the launch at the price of its beginning.

    history: the zone's prices in order of time, the first from before the launch. Where it is not,
        it stands for what came before it, too.
    """
    paid = charged_seconds(seconds)
    usd, begin = 0.0, 0.0
    while begin < paid:
        at = launched + timedelta(seconds=begin)
        price = max((one for one in history if one.since <= at), default=history[0])
        usd += hire_usd(min(SECONDS_PER_HOUR, paid - begin), price.usd_per_hour)
        begin += SECONDS_PER_HOUR
    what = f"{instance_type}, spot in {zone}"
    return Line(what, paid / SECONDS_PER_HOUR, "h", usd, "EC2 spot history")


def make_bill(instances: Sequence[Line], usage: RunUsage, services: Services) -> RunBill:
    """The lines of instances, and those of what was used beside them.

    services: the prices that are known; a service without one is unknown in the bill
    """
    stored, out = usage.stored_gb_hours, usage.bytes_out
    amounts = {
        Service.VOLUME: usage.volume_gb_hours / HOURS_PER_MONTH,
        Service.ADDRESS: usage.address_hours,
        Service.TRAFFIC_OUT: None if out is None else out / BYTES_PER_GB,
        Service.STORAGE: None if stored is None else stored / HOURS_PER_MONTH,
    }
    lines, unknown = list(instances), []
    for service, amount in amounts.items():
        price = services.get(service)
        if amount is None:
            unknown.append(f"{service.value}: not counted")
        elif price is not None:
            usd = price.usd(amount)
            lines.append(Line(service.value, amount, service.unit, usd, price.said))
        elif amount > 0:
            unknown.append(f"{service.value}: no price is known")
    return RunBill(tuple(lines), tuple(unknown))


def hourly(price: Price, services: Services, volume_gb: float, addresses: int = 1) -> RunBill:
    """What an hour of a running target costs, with its public addresses and without traffic."""
    usage = RunUsage(volume_gb_hours=volume_gb, address_hours=addresses)
    bill = make_bill([hire(price, SECONDS_PER_HOUR)], usage, services)
    return RunBill(tuple(line for line in bill.lines if line.amount), bill.unknown)
