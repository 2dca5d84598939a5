"""Prices of AWS: the offers that are asked about, the answers, and the file that holds answers.

The snapshot that ships here, the user's own --price_file and the cache have one form:

    {"schema": 1,
     "prices": [{"instance_type", "region", "pricing", "usd_per_hour", "as_of", "source",
                 "confidence"}],
     "services": [{"service", "region", "tiers": [{"begin", "usd"}], "as_of", "source",
                   "confidence"}]}
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from pydantic import TypeAdapter

from inference.errors import InvalidRequest, Unavailable
from inference.file_model import Number, Record, Text, read_record
from inference.json_file import read_json

SNAPSHOT = Path(__file__).parent / "data" / "ec2_prices.json"


class NoPrice(Unavailable):
    """This source has no such price. The message says why, and the next source is asked."""


class Pricing(Enum):
    """How an instance is paid. Savings plans are of the EC2 instance kind, with no upfront."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    CAPACITY_BLOCK = "capacity-block"
    SAVINGS_1YR = "savings-1yr"
    SAVINGS_3YR = "savings-3yr"


class Service(Enum):
    """What is paid beside an instance."""

    TRAFFIC_OUT = "traffic-out"  # to the internet; what comes in is free
    VOLUME = "gp3-volume"
    ADDRESS = "public-ipv4"
    STORAGE = "s3-storage"

    @property
    def unit(self) -> str:
        """What its price is for."""
        units = {Service.TRAFFIC_OUT: "GB", Service.ADDRESS: "hour"}
        return units.get(self, "GB-month")


@dataclass(frozen=True)
class InstanceOffer(Record):
    """An instance type in a region, and how it is paid. It runs Linux in shared tenancy."""

    instance_type: str
    region: str
    pricing: Pricing = Pricing.ON_DEMAND

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]*\.[a-z0-9-]+", self.instance_type):
            raise InvalidRequest(
                f"{self.instance_type!r} is no instance type, such as trn1.2xlarge"
            )
        check_region(self.region)

    @property
    def offer(self) -> InstanceOffer:
        return InstanceOffer(self.instance_type, self.region, self.pricing)

    @property
    def key(self) -> str:
        return f"{self.instance_type}.{self.pricing.value}"

    def __str__(self) -> str:
        return f"{self.instance_type} in {self.region}, {self.pricing.value}"

    def at(self, usd_per_hour: float, as_of: date, source: str) -> Price:
        """This offer at its price."""
        return Price(**vars(self.offer), usd_per_hour=usd_per_hour, as_of=as_of, source=source)


@dataclass(frozen=True)
class ServiceOffer(Record):
    """A service in a region."""

    service: Service
    region: str

    def __post_init__(self) -> None:
        check_region(self.region)

    @property
    def offer(self) -> ServiceOffer:
        return ServiceOffer(self.service, self.region)

    @property
    def key(self) -> str:
        return self.service.value

    def __str__(self) -> str:
        return f"{self.key} in {self.region}"


@dataclass(frozen=True, kw_only=True)
class _Said(Record):
    """Who says a price, and when."""

    as_of: date  # the day on which it held
    source: Text = ""  # who says so, in words; a row of a file without one is the file's own
    confidence: Literal["high", "low"] = "high"

    @property
    def said(self) -> str:
        doubt = ", low confidence" if self.confidence == "low" else ""
        return f"{self.source}, {self.as_of}{doubt}"


@dataclass(frozen=True, kw_only=True)
class Price(_Said, InstanceOffer):
    """The price of an instance."""

    usd_per_hour: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.usd_per_hour < math.inf:
            raise InvalidRequest(
                f"{self.offer}: a price is above 0, got {self.usd_per_hour} from {self.source}"
            )

    @property
    def rate(self) -> float:
        return self.usd_per_hour

    def __str__(self) -> str:
        return f"${self.usd_per_hour:g} an hour for {self.offer} ({self.said})"


@dataclass(frozen=True)
class Tier(Record):
    """US dollars a unit for what an account uses beyond `begin` units in a month."""

    begin: Number
    usd: Number


@dataclass(frozen=True, kw_only=True)
class ServicePrice(_Said, ServiceOffer):
    """The price of a service, by tiers."""

    tiers: tuple[Tier, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        begins = [tier.begin for tier in self.tiers]
        if begins[:1] != [0] or begins != sorted({*begins}) or any(t.usd < 0 for t in self.tiers):
            raise InvalidRequest(f"{self.offer}: tiers begin at 0, rise, and cost 0 or more")

    @property
    def rate(self) -> float:
        """US dollars a unit in the first tier that is paid for; free allowances are left out."""
        return next((tier.usd for tier in self.tiers if tier.usd > 0), 0.0)

    def usd(self, amount: float) -> float:
        """US dollars for so many units in one month, if the account uses no others."""
        ends = [*(tier.begin for tier in self.tiers[1:]), math.inf]
        parts = zip(self.tiers, ends, strict=True)
        return sum(tier.usd * max(0.0, min(amount, end) - tier.begin) for tier, end in parts)


Offer: TypeAlias = InstanceOffer | ServiceOffer
Answer: TypeAlias = Price | ServicePrice


class PriceSource(Protocol):
    """A source of prices."""

    name: str

    def answer(self, offer: Offer) -> Answer:
        """The price of an offer: a Price for an instance, else a ServicePrice. Raises NoPrice."""
        ...


@dataclass(frozen=True)
class PriceFile(Record):
    """The content of a price file."""

    schema: Literal[1] = 1
    prices: tuple[Price, ...] = ()
    services: tuple[ServicePrice, ...] = ()
    usd_per_million_tokens: tuple[Number, ...] | None = None  # printed beside the prices

    def plain(self) -> dict[str, Any]:
        """The file's content as JSON has it."""
        content: dict[str, Any] = _FILE.dump_python(self, mode="json", exclude_none=True)
        return content


_FILE = TypeAdapter(PriceFile)


class PriceTable:
    """Prices known beforehand; a PriceSource."""

    def __init__(self, name: str, answers: Iterable[Answer]) -> None:
        self.name = name
        self.answers: dict[Offer, Answer] = {answer.offer: answer for answer in answers}

    def answer(self, offer: Offer) -> Answer:
        if offer in self.answers:
            return self.answers[offer]
        known = {one.region for one in self.answers if one.key == offer.key}
        guess = f" (it has {', '.join(sorted(known))}, and other regions' prices are not guessed)"
        raise NoPrice(f"it has no such row{guess if known else ''}")


def read_table(path: Path, name: str) -> PriceTable:
    """A table from its file. Raises InvalidRequest naming what is wrong with the file."""
    raw = read_json(path, InvalidRequest)
    if isinstance(raw.value, dict) and "schema" not in raw.value:
        raw.refuse('an object with "schema": 1')
    file = read_record(raw, PriceFile)
    rows: list[Answer] = [*file.prices, *file.services]
    return PriceTable(name, [replace(row, source=row.source or str(path)) for row in rows])


def check_region(region: str) -> None:
    """Raises InvalidRequest for what cannot be the name of a region."""
    if not re.fullmatch(r"[a-z]{2}(-[a-z]+)+-[0-9]+", region):
        raise InvalidRequest(f"{region!r} is no region, such as us-east-1")
