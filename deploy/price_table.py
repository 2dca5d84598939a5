"""Prices in a JSON file: the snapshot that ships here, the user's own --price_file, and the cache have one form.

{"schema": 1,
 "prices": [{"instance_type", "region", "pricing", "usd_per_hour", "as_of", "source", "confidence"}],
 "transfers": [{"region", "usd_per_gb_in", "usd_per_gb_out", "as_of", "source"}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from deploy.price import NoPrice, Offer, Price, Pricing, TransferPrice
from inference.errors import InvalidRequest

SCHEMA = 1
SNAPSHOT = Path(__file__).parent / "data" / "ec2_prices.json"
_PRICE = {"instance_type", "region", "usd_per_hour", "as_of"}
_PRICE_OPTIONAL = {"pricing", "source", "confidence"}
_TRANSFER = {"region", "usd_per_gb_in", "usd_per_gb_out", "as_of"}


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
    """A table from its file; raises InvalidRequest naming what is wrong with it. A row without source is the file's own."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InvalidRequest(f"{path}: not a price file: {error}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise InvalidRequest(f'{path}: a price file is an object with "schema": {SCHEMA}')
    prices = [
        _price(row, f"{path}, price {number}", str(path))
        for number, row in _rows(content, "prices", path)
    ]
    transfers = [
        _transfer(row, f"{path}, transfer {number}", str(path))
        for number, row in _rows(content, "transfers", path)
    ]
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


def _rows(content: Mapping[str, Any], key: str, path: Path) -> Iterable[tuple[int, Any]]:
    rows = content.get(key, [])
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise InvalidRequest(f"{path}: {key} is a list")
    return enumerate(rows, start=1)


def _price(row: Any, where: str, file: str) -> Price:
    _check_keys(row, _PRICE, _PRICE_OPTIONAL, where)
    try:
        pricing = Pricing(row.get("pricing", Pricing.ON_DEMAND.value))
    except ValueError as error:
        raise InvalidRequest(
            f"{where}: {error} ({', '.join(known.value for known in Pricing)})"
        ) from error
    offer = Offer(str(row["instance_type"]), str(row["region"]), pricing)
    usd = _number(row, "usd_per_hour", where)
    return Price(
        offer,
        usd,
        _day(row, where),
        str(row.get("source", file)),
        str(row.get("confidence", "high")),
    )


def _transfer(row: Any, where: str, file: str) -> TransferPrice:
    _check_keys(row, _TRANSFER, {"source"}, where)
    usd_in, usd_out = _number(row, "usd_per_gb_in", where), _number(row, "usd_per_gb_out", where)
    return TransferPrice(
        str(row["region"]), usd_in, usd_out, _day(row, where), str(row.get("source", file))
    )


def _check_keys(row: Any, needed: set[str], optional: set[str], where: str) -> None:
    if not isinstance(row, dict):
        raise InvalidRequest(f"{where}: an object is needed, got {row!r}")
    missing, unknown = needed - row.keys(), row.keys() - needed - optional
    if missing or unknown:
        raise InvalidRequest(f"{where}: missing {sorted(missing)}, unknown {sorted(unknown)}")


def _number(row: Mapping[str, Any], key: str, where: str) -> float:
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{where}: {key} is a number, got {value!r}")
    return float(value)


def _day(row: Mapping[str, Any], where: str) -> date:
    try:
        return date.fromisoformat(str(row["as_of"]))
    except ValueError as error:
        raise InvalidRequest(f"{where}: as_of is a day, such as 2026-09-24: {error}") from error
