"""Prices in a JSON file: the snapshot that ships here, the user's own --price_file, and the cache
have one form.

{"schema": 1,
 "prices": [{"instance_type", "region", "pricing", "usd_per_hour", "as_of", "source",
 "confidence"}], "transfers": [{"region", "usd_per_gb_in", "usd_per_gb_out", "as_of", "source"}]}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from deploy.price import NoPrice, Offer, Price, Pricing, TransferPrice
from inference.errors import InvalidRequest
from inference.json_file import Json, read_json

SCHEMA = 1
SNAPSHOT = Path(__file__).parent / "data" / "ec2_prices.json"
_PRICE = ("instance_type", "region", "usd_per_hour", "as_of")
_PRICE_OPTIONAL = ("pricing", "source", "confidence")
_TRANSFER = ("region", "usd_per_gb_in", "usd_per_gb_out", "as_of")


class PriceTable:
    """Prices known beforehand; a PriceSource."""

    def __init__(
        self, name: str, prices: Iterable[Price], transfers: Iterable[TransferPrice] = ()
    ) -> None:
        self.name = name
        self.prices: Mapping[Offer, Price] = {price.offer: price for price in prices}
        self.transfers: Mapping[str, TransferPrice] = {
            transfer.region: transfer for transfer in transfers
        }

    def price(self, offer: Offer) -> Price:
        found = self.prices.get(offer)
        if found is None:
            raise NoPrice(f"it has no such row{self._elsewhere(offer)}")
        return found

    def transfer(self, region: str) -> TransferPrice:
        found = self.transfers.get(region)
        if found is None:
            raise NoPrice(f"it has no price of traffic in {region}")
        return found

    def _elsewhere(self, offer: Offer) -> str:
        others = sorted(
            {known.region for known in self.prices if known.instance_type == offer.instance_type}
            - {offer.region}
        )
        return (
            f" (it has {', '.join(others)}, and the prices of other regions are not guessed)"
            if others
            else ""
        )


def read_table(path: Path, name: str) -> PriceTable:
    """A table from its file; raises InvalidRequest naming what is wrong with it. A row without
    source is the file's own.
    """
    content = read_json(path, InvalidRequest)
    if not isinstance(content.value, dict) or content.value.get("schema") != SCHEMA:
        content.refuse(f'an object with "schema": {SCHEMA}')
    prices = [_price(row, str(path)) for row in _rows(content.field("prices"))]
    transfers = [_transfer(row, str(path)) for row in _rows(content.field("transfers"))]
    return PriceTable(name, prices, transfers)


def price_row(price: Price) -> dict[str, Any]:
    """A price as the row of a file."""
    offer = {
        "instance_type": price.offer.instance_type,
        "region": price.offer.region,
        "pricing": price.offer.pricing.value,
    }
    return offer | {
        "usd_per_hour": price.usd_per_hour,
        "as_of": str(price.as_of),
        "source": price.source,
        "confidence": price.confidence,
    }


def transfer_row(transfer: TransferPrice) -> dict[str, Any]:
    """A price of traffic as the row of a file."""
    return vars(transfer) | {"as_of": str(transfer.as_of)}


def _rows(raw: Json) -> list[Json]:
    return [] if raw.absent else raw.items()


def _price(row: Json, file: str) -> Price:
    row.keys(_PRICE, _PRICE_OPTIONAL)
    kind = row.field("pricing")
    if not kind.absent and kind.value not in [known.value for known in Pricing]:
        kind.refuse(f"one of {', '.join(known.value for known in Pricing)}")
    pricing = Pricing.ON_DEMAND if kind.absent else Pricing(kind.value)
    offer = row.make(Offer, row.field("instance_type").text(), row.field("region").text(), pricing)
    source, confidence = _text(row.field("source"), file), _text(row.field("confidence"), "high")
    return row.make(Price, offer, row.field("usd_per_hour").number(), _day(row), source, confidence)


def _transfer(row: Json, file: str) -> TransferPrice:
    row.keys(_TRANSFER, ["source"])
    usd_in, usd_out = (row.field(name).number() for name in ("usd_per_gb_in", "usd_per_gb_out"))
    source = _text(row.field("source"), file)
    return row.make(TransferPrice, row.field("region").text(), usd_in, usd_out, _day(row), source)


def _text(raw: Json, default: str) -> str:
    return default if raw.absent else raw.text()


def _day(row: Json) -> date:
    try:
        return date.fromisoformat(row.field("as_of").text())
    except ValueError:
        row.field("as_of").refuse("a day, such as 2026-09-24,")
