"""Finds the price of an offer from the first source that knows it: the user's file, AWS, what AWS
said today, the bundled snapshot.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from deploy.aws_prices import LivePrices
from deploy.ec2_prices import (
    SNAPSHOT,
    InstanceOffer,
    NoPrice,
    Price,
    PriceCache,
    PriceSource,
    TransferPrice,
    read_table,
)
from inference.cache_directory import cache_directory

T = TypeVar("T")
PLAUSIBLE_FACTOR = 4.0
"""Factor by which a price may differ from the known one. A price further off is reported with low
confidence and not kept. p5.48xlarge really fell from $98.32 to $55.04 in 2025.
"""


class Quote(NamedTuple):
    """A price, and why the sources before its own had none."""

    price: Price
    passed_over: tuple[str, ...]


class Unpriced(NoPrice):
    """No source has a price; `reasons` holds what each of them said."""

    def __init__(self, what: str, reasons: tuple[str, ...]) -> None:
        super().__init__(
            f"no price for {what}: {'; '.join(reasons)}; --usd_per_hour, in place of --instance, "
            "states one"
        )
        self.reasons = reasons


class PriceChain:
    """Sources in the order in which they are asked."""

    def __init__(self, sources: Sequence[PriceSource]) -> None:
        self._sources = tuple(sources)

    def quote(self, offer: InstanceOffer) -> Quote:
        """The price of an offer. Raises Unpriced where no source knows it."""
        return Quote(*self._first(str(offer), lambda source: source.price(offer)))

    def transfer(self, region: str) -> TransferPrice:
        """The price of a region's traffic. Raises Unpriced where no source knows it."""
        return self._first(f"traffic out of {region}", lambda source: source.transfer(region))[0]

    def _first(self, what: str, ask: Callable[[PriceSource], T]) -> tuple[T, tuple[str, ...]]:
        passed_over: list[str] = []
        for source in self._sources:
            try:
                return ask(source), tuple(passed_over)
            except NoPrice as reason:
                passed_over.append(f"{source.name}: {reason}")
        raise Unpriced(what, tuple(passed_over))


class Kept:
    """A PriceSource that keeps another source's answers in a cache, unless they are far from what
    `known` says.
    """

    def __init__(self, source: PriceSource, cache: PriceCache, known: PriceSource) -> None:
        self.name = source.name
        self._source, self._cache, self._known = source, cache, known

    def price(self, offer: InstanceOffer) -> Price:
        price = self._source.price(offer)
        try:
            before = self._known.price(offer)
        except NoPrice:
            before = price
        moved = price.usd_per_hour / before.usd_per_hour
        if not 1 / PLAUSIBLE_FACTOR <= moved <= PLAUSIBLE_FACTOR:
            doubted = f"{price.source}; ${before.usd_per_hour:g} on {before.as_of}"
            return replace(price, confidence="low", source=doubted)
        self._cache.keep(price)
        return price

    def transfer(self, region: str) -> TransferPrice:
        transfer = self._source.transfer(region)
        self._cache.keep_transfer(transfer)
        return transfer


def open_prices(price_file: Path | None = None, live: bool = True) -> PriceChain:
    """The sources that the command line asks for.

    live: false asks nobody, for machines that must not and for results that can be repeated
    """
    snapshot = read_table(SNAPSHOT, "snapshot")
    own = [] if price_file is None else [read_table(price_file, str(price_file))]
    if not live:
        return PriceChain([*own, snapshot])
    cache = PriceCache(cache_directory("prices"), lambda line: print(line, file=sys.stderr))
    return PriceChain([*own, Kept(LivePrices(), cache, snapshot), cache, snapshot])
