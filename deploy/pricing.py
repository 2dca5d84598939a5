"""Finds the price of an offer from the first source that knows it: the user's file, AWS, what AWS
said within a day, the bundled snapshot.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from deploy.aws_prices import LivePrices
from deploy.ec2_prices import (
    SNAPSHOT,
    Answer,
    InstanceOffer,
    NoPrice,
    Offer,
    Price,
    PriceFile,
    PriceSource,
    Service,
    ServiceOffer,
    ServicePrice,
    read_table,
)
from inference.cache_directory import cache_directory
from inference.command import say
from inference.errors import InvalidRequest
from inference.whole_file import write_whole

MAX_AGE_SECONDS = 24 * 3600.0
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

    def __init__(self, offer: Offer, reasons: tuple[str, ...]) -> None:
        super().__init__(f"no price for {offer}: {'; '.join(reasons)}")
        self.reasons = reasons


class PriceChain:
    """Sources in the order in which they are asked."""

    def __init__(self, sources: Sequence[PriceSource]) -> None:
        self._sources = tuple(sources)

    def quote(self, offer: InstanceOffer) -> Quote:
        """The price of an instance. Raises Unpriced where no source knows it."""
        answer, passed_over = self._first(offer)
        assert isinstance(answer, Price)
        return Quote(answer, passed_over)

    def service(self, offer: ServiceOffer) -> ServicePrice:
        """The price of a service. Raises Unpriced where no source knows it."""
        answer, _ = self._first(offer)
        assert isinstance(answer, ServicePrice)
        return answer

    def services(self, region: str) -> dict[Service, ServicePrice]:
        """The services that have a price in the region."""
        found = {}
        for service in Service:
            with suppress(Unpriced):
                found[service] = self.service(ServiceOffer(service, region))
        return found

    def _first(self, offer: Offer) -> tuple[Answer, tuple[str, ...]]:
        passed_over: list[str] = []
        for source in self._sources:
            try:
                return source.answer(offer), tuple(passed_over)
            except NoPrice as reason:
                passed_over.append(f"{source.name}: {reason}")
        raise Unpriced(offer, tuple(passed_over))


class PriceCache:
    """A PriceSource with what AWS said within the last day, for when it cannot be asked.

    Each answer has a price file below a directory. Its age is its modification time.
    """

    name = "cache"

    def __init__(
        self, directory: Path, tell: Callable[[str], None], clock: Callable[[], float] = time.time
    ) -> None:
        """Use the files below a directory.

        tell: hears, in a line, of a file that cannot be used; the next price replaces it
        """
        self._directory, self._tell, self._clock = directory, tell, clock

    def answer(self, offer: Offer) -> Answer:
        path = self._path(offer)
        try:
            age = self._clock() - path.stat().st_mtime
        except OSError as error:
            raise NoPrice("nothing kept") from error
        if age > MAX_AGE_SECONDS:
            raise NoPrice(f"what is kept is {age / 3600:.0f} hours old")
        try:
            answer = read_table(path, self.name).answer(offer)
        except InvalidRequest as error:
            self._tell(f"note: a kept price is not used: {error}")
            raise NoPrice("what is kept cannot be used") from error
        return replace(answer, source=f"{answer.source} (kept)")

    def keep(self, answer: Answer) -> None:
        """Keep an answer. A failure is ignored: the price is known anyway."""
        if isinstance(answer, Price):
            file = PriceFile(prices=(answer,))
        else:
            file = PriceFile(services=(answer,))
        try:
            write_whole(self._path(answer), json.dumps(file.plain()))
        except OSError:
            return

    def _path(self, offer: Offer) -> Path:
        return self._directory / offer.region / f"{offer.key}.json"


class Kept:
    """A PriceSource that keeps another source's answers in a cache, unless they are far from what
    `known` says.
    """

    def __init__(self, source: PriceSource, cache: PriceCache, known: PriceSource) -> None:
        self.name = source.name
        self._source, self._cache, self._known = source, cache, known

    def answer(self, offer: Offer) -> Answer:
        answer = self._source.answer(offer)
        try:
            before = self._known.answer(offer)
        except NoPrice:
            before = answer
        low, high = sorted((answer.rate, before.rate))
        if high > PLAUSIBLE_FACTOR * low:
            doubted = f"{answer.source}; ${before.rate:g} on {before.as_of}"
            return replace(answer, confidence="low", source=doubted)
        self._cache.keep(answer)
        return answer


def open_prices(price_file: Path | None = None, live: bool = True) -> PriceChain:
    """The sources that the command line asks for.

    live: false asks nobody, for machines that must not and for results that can be repeated
    """
    snapshot = read_table(SNAPSHOT, "snapshot")
    own = [] if price_file is None else [read_table(price_file, str(price_file))]
    if not live:
        return PriceChain([*own, snapshot])
    cache = PriceCache(cache_directory("prices"), say)
    return PriceChain([*own, Kept(LivePrices(), cache, snapshot), cache, snapshot])
