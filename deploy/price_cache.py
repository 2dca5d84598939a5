"""Prices that AWS said within the last day, kept on disk for when it cannot be asked."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from deploy.price import NoPrice, Offer, Price, PriceSource, TransferPrice
from deploy.price_table import SCHEMA, price_row, read_table, transfer_row
from inference.errors import InvalidRequest
from inference.whole_file import write_whole

T = TypeVar("T")
MAX_AGE_SECONDS = 24 * 3600.0
PLAUSIBLE_FACTOR = 4.0
"""A price that moved further than this is reported with low confidence and not kept; p5.48xlarge
really fell from $98.32 to $55.04 in 2025.
"""


class PriceCache:
    """One file a price and region below a directory, replaced as a whole, as old as its
    modification time; a PriceSource.
    """

    name = "cache"

    def __init__(
        self, directory: Path, tell: Callable[[str], None], clock: Callable[[], float] = time.time
    ) -> None:
        """tell: hears, in a line, of a file that cannot be used; the next price replaces it."""
        self._directory, self._tell, self._clock = directory, tell, clock

    def price(self, offer: Offer) -> Price:
        path = self._price_path(offer)
        price = self._read(path, lambda: read_table(path, self.name).price(offer))
        return replace(price, source=f"{price.source} (kept)")

    def transfer(self, region: str) -> TransferPrice:
        path = self._transfer_path(region)
        transfer = self._read(path, lambda: read_table(path, self.name).transfer(region))
        return replace(transfer, source=f"{transfer.source} (kept)")

    def keep(self, price: Price) -> None:
        self._write(self._price_path(price.offer), {"prices": [price_row(price)]})

    def keep_transfer(self, transfer: TransferPrice) -> None:
        self._write(self._transfer_path(transfer.region), {"transfers": [transfer_row(transfer)]})

    def _price_path(self, offer: Offer) -> Path:
        return self._directory / offer.region / f"{offer.instance_type}.{offer.pricing.value}.json"

    def _transfer_path(self, region: str) -> Path:
        return self._directory / region / "transfer.json"

    def _read(self, path: Path, read: Callable[[], T]) -> T:
        try:
            age = self._clock() - path.stat().st_mtime
        except OSError as error:
            raise NoPrice("nothing kept") from error
        if age > MAX_AGE_SECONDS:
            raise NoPrice(f"what is kept is {age / 3600:.0f} hours old")
        try:
            return read()
        except InvalidRequest as error:
            self._tell(f"note: a kept price is not used: {error}")
            raise NoPrice("what is kept cannot be used") from error

    def _write(self, path: Path, content: dict[str, Any]) -> None:
        """A cache that cannot be written is none; the price is known anyway."""
        try:
            write_whole(path, json.dumps({"schema": SCHEMA} | content))
        except OSError:
            return


class Kept:
    """A source whose answers are kept in a cache, unless they are far from what `known` says; a
    PriceSource.
    """

    def __init__(self, source: PriceSource, cache: PriceCache, known: PriceSource) -> None:
        self.name = source.name
        self._source, self._cache, self._known = source, cache, known

    def price(self, offer: Offer) -> Price:
        price = self._source.price(offer)
        try:
            before = self._known.price(offer)
        except NoPrice:
            before = price
        if (
            not before.usd_per_hour / PLAUSIBLE_FACTOR
            <= price.usd_per_hour
            <= before.usd_per_hour * PLAUSIBLE_FACTOR
        ):
            return replace(
                price,
                confidence="low",
                source=f"{price.source}; ${before.usd_per_hour:g} on {before.as_of}",
            )
        self._cache.keep(price)
        return price

    def transfer(self, region: str) -> TransferPrice:
        transfer = self._source.transfer(region)
        self._cache.keep_transfer(transfer)
        return transfer
