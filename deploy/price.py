"""What is asked for and what is answered: an offer of EC2, its price with source and date, and
the price of traffic.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Protocol

from inference.errors import InvalidRequest, Unavailable

CONFIDENCES = ("high", "low")


class NoPrice(Unavailable):
    """This source has no such price; the message says why, and the next source is asked."""


class SourceDown(NoPrice):
    """This source answers nothing at all for now."""


class Pricing(Enum):
    """How an instance is paid."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    CAPACITY_BLOCK = "capacity-block"


@dataclass(frozen=True)
class Offer:
    """An instance type in a region, and how it is paid. Linux, shared tenancy."""

    instance_type: str
    region: str
    pricing: Pricing = Pricing.ON_DEMAND

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]*\.[a-z0-9-]+", self.instance_type):
            raise InvalidRequest(
                f"{self.instance_type!r} is no instance type, such as trn1.2xlarge"
            )
        if not re.fullmatch(r"[a-z]{2}(-[a-z]+)+-[0-9]+", self.region):
            raise InvalidRequest(f"{self.region!r} is no region, such as us-east-1")

    def __str__(self) -> str:
        return f"{self.instance_type} in {self.region}, {self.pricing.value}"


@dataclass(frozen=True)
class Price:
    """US dollars an hour. as_of: the day on which it held.  source: who says so, in words."""

    offer: Offer
    usd_per_hour: float
    as_of: date
    source: str
    confidence: str = "high"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.usd_per_hour) and self.usd_per_hour > 0):
            raise InvalidRequest(
                f"{self.offer}: a price is above 0, got {self.usd_per_hour} from {self.source}"
            )
        if self.confidence not in CONFIDENCES:
            raise InvalidRequest(
                f"{self.offer}: confidence is high or low, got {self.confidence!r}"
            )

    def __str__(self) -> str:
        doubt = ", low confidence" if self.confidence == "low" else ""
        return (
            f"${self.usd_per_hour:g} an hour for {self.offer} ({self.source}, {self.as_of}{doubt})"
        )


@dataclass(frozen=True)
class TransferPrice:
    """US dollars a GB between a region and the internet, in the first tier that is paid for;
    free allowances are not taken off.
    """

    region: str
    usd_per_gb_in: float
    usd_per_gb_out: float
    as_of: date
    source: str

    def __post_init__(self) -> None:
        for value in (self.usd_per_gb_in, self.usd_per_gb_out):
            if not 0 <= value < math.inf:
                raise InvalidRequest(
                    f"{self.region}: traffic costs 0 or more a GB, got {value} from {self.source}"
                )


class PriceSource(Protocol):
    """Somebody who knows prices."""

    name: str

    def price(self, offer: Offer) -> Price:
        """Raises NoPrice."""
        ...

    def transfer(self, region: str) -> TransferPrice:
        """Raises NoPrice."""
        ...
