"""Prices of EC2: the question, the answer, and the file that holds answers.

The snapshot that ships here, the user's own --price_file and the cache have one form:

    {"schema": 1,
     "prices": [{"instance_type", "region", "pricing", "usd_per_hour", "as_of", "source",
                 "confidence"}],
     "transfers": [{"region", "usd_per_gb_in", "usd_per_gb_out", "as_of", "source"}]}
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from pydantic import TypeAdapter

from inference.errors import InvalidRequest, Unavailable
from inference.file_model import Number, Record, Text, read_record
from inference.json_file import read_json
from inference.whole_file import write_whole

T = TypeVar("T")
SNAPSHOT = Path(__file__).parent / "data" / "ec2_prices.json"
MAX_AGE_SECONDS = 24 * 3600.0


class NoPrice(Unavailable):
    """This source has no such price. The message says why, and the next source is asked."""


class SourceDown(NoPrice):
    """This source answers nothing at all for now."""


class Pricing(Enum):
    """How an instance is paid."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    CAPACITY_BLOCK = "capacity-block"


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
        if not re.fullmatch(r"[a-z]{2}(-[a-z]+)+-[0-9]+", self.region):
            raise InvalidRequest(f"{self.region!r} is no region, such as us-east-1")

    def __str__(self) -> str:
        return f"{self.instance_type} in {self.region}, {self.pricing.value}"

    def at(self, usd_per_hour: float, as_of: date, source: str) -> Price:
        """This offer at its price."""
        return Price(
            self.instance_type,
            self.region,
            self.pricing,
            usd_per_hour=usd_per_hour,
            as_of=as_of,
            source=source,
        )


@dataclass(frozen=True, kw_only=True)
class Price(InstanceOffer):
    """The price of an offer."""

    usd_per_hour: float
    as_of: date  # the day on which it held
    source: Text = ""  # who says so, in words; a row of a file without one is the file's own
    confidence: Literal["high", "low"] = "high"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.usd_per_hour < math.inf:
            raise InvalidRequest(
                f"{self.offer}: a price is above 0, got {self.usd_per_hour} from {self.source}"
            )

    @property
    def offer(self) -> InstanceOffer:
        return InstanceOffer(self.instance_type, self.region, self.pricing)

    def __str__(self) -> str:
        doubt = ", low confidence" if self.confidence == "low" else ""
        return (
            f"${self.usd_per_hour:g} an hour for {self.offer} ({self.source}, {self.as_of}{doubt})"
        )


@dataclass(frozen=True)
class TransferPrice(Record):
    """US dollars a GB between a region and the internet, in the first paid tier. Free allowances
    are not deducted.
    """

    region: Text
    usd_per_gb_in: float
    usd_per_gb_out: float
    as_of: date
    source: Text = ""

    def __post_init__(self) -> None:
        for value in (self.usd_per_gb_in, self.usd_per_gb_out):
            if not 0 <= value < math.inf:
                raise InvalidRequest(
                    f"{self.region}: traffic costs 0 or more a GB, got {value} from {self.source}"
                )


class PriceSource(Protocol):
    """A source of prices."""

    name: str

    def price(self, offer: InstanceOffer) -> Price:
        """The price of an offer. Raises NoPrice."""
        ...

    def transfer(self, region: str) -> TransferPrice:
        """The price of traffic of a region. Raises NoPrice."""
        ...


@dataclass(frozen=True)
class PriceFile(Record):
    """The content of a price file."""

    schema: Literal[1] = 1
    prices: tuple[Price, ...] = ()
    transfers: tuple[TransferPrice, ...] = ()
    usd_per_million_tokens: tuple[Number, ...] | None = None  # printed beside the prices

    def plain(self) -> dict[str, Any]:
        """The file's content as JSON has it."""
        content: dict[str, Any] = _FILE.dump_python(self, mode="json", exclude_none=True)
        return content


_FILE = TypeAdapter(PriceFile)


class PriceTable:
    """Prices known beforehand; a PriceSource."""

    def __init__(
        self, name: str, prices: Iterable[Price], transfers: Iterable[TransferPrice] = ()
    ) -> None:
        self.name = name
        self.prices = {price.offer: price for price in prices}
        self.transfers = {transfer.region: transfer for transfer in transfers}

    def price(self, offer: InstanceOffer) -> Price:
        if offer in self.prices:
            return self.prices[offer]
        known = {one.region for one in self.prices if one.instance_type == offer.instance_type}
        others = ", ".join(sorted(known - {offer.region}))
        guess = f" (it has {others}, and the prices of other regions are not guessed)"
        raise NoPrice(f"it has no such row{guess if others else ''}")

    def transfer(self, region: str) -> TransferPrice:
        if region in self.transfers:
            return self.transfers[region]
        raise NoPrice(f"it has no price of traffic in {region}")


def read_table(path: Path, name: str) -> PriceTable:
    """A table from its file. Raises InvalidRequest naming what is wrong with the file."""
    raw = read_json(path, InvalidRequest)
    if isinstance(raw.value, dict) and "schema" not in raw.value:
        raw.refuse('an object with "schema": 1')
    file = read_record(raw, PriceFile)
    return PriceTable(
        name,
        [replace(price, source=price.source or str(path)) for price in file.prices],
        [replace(transfer, source=transfer.source or str(path)) for transfer in file.transfers],
    )


class PriceCache:
    """A PriceSource with the prices that AWS gave within the last day, for when it cannot be asked.

    Each price and each region has a file below a directory. Its age is its modification time.
    """

    name = "cache"

    def __init__(
        self, directory: Path, tell: Callable[[str], None], clock: Callable[[], float] = time.time
    ) -> None:
        """Use the files below a directory.

        tell: hears, in a line, of a file that cannot be used; the next price replaces it
        """
        self._directory, self._tell, self._clock = directory, tell, clock

    def price(self, offer: InstanceOffer) -> Price:
        price = self._table(self._price_path(offer)).price(offer)
        return replace(price, source=f"{price.source} (kept)")

    def transfer(self, region: str) -> TransferPrice:
        transfer = self._table(self._transfer_path(region)).transfer(region)
        return replace(transfer, source=f"{transfer.source} (kept)")

    def keep(self, price: Price) -> None:
        self._write(self._price_path(price), PriceFile(prices=(price,)))

    def keep_transfer(self, transfer: TransferPrice) -> None:
        self._write(self._transfer_path(transfer.region), PriceFile(transfers=(transfer,)))

    def _price_path(self, offer: InstanceOffer) -> Path:
        return self._directory / offer.region / f"{offer.instance_type}.{offer.pricing.value}.json"

    def _transfer_path(self, region: str) -> Path:
        return self._directory / region / "transfer.json"

    def _table(self, path: Path) -> PriceTable:
        try:
            age = self._clock() - path.stat().st_mtime
        except OSError as error:
            raise NoPrice("nothing kept") from error
        if age > MAX_AGE_SECONDS:
            raise NoPrice(f"what is kept is {age / 3600:.0f} hours old")
        try:
            return read_table(path, self.name)
        except InvalidRequest as error:
            self._tell(f"note: a kept price is not used: {error}")
            raise NoPrice("what is kept cannot be used") from error

    def _write(self, path: Path, content: PriceFile) -> None:
        """Write a file. A failure is ignored: the price is known anyway."""
        try:
            write_whole(path, json.dumps(content.plain()))
        except OSError:
            return
