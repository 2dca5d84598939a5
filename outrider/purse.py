"""What a run has cost so far, and the most that it may."""

from __future__ import annotations

import threading

from inference.cost import Rates
from inference.errors import InvalidRequest
from inference.objective import Effort, Terms
from outrider.options import Options
from outrider.wishes import UNPRICED


class Purse:
    """Charges the texts of one run, from any thread, with what is known of its costs. limit: US dollars; None where only the count is wanted."""

    def __init__(self, terms: Terms, limit: float | None) -> None:
        if limit is not None and not limit > 0:
            raise InvalidRequest(f"--max_usd is above 0: got {limit}")
        self._prices, self._limit = terms.known_costs(), limit
        self._charged: dict[int, float] = {}
        self._lock = threading.Lock()

    def charge(self, index: int, effort: Effort) -> float:
        """What this text has taken so far, all of it; returns its price in US dollars."""
        usd = self._prices.of(effort)
        with self._lock:
            self._charged[index] = usd
        return usd

    @property
    def spent(self) -> float:
        """US dollars, over all texts."""
        with self._lock:
            return sum(self._charged.values())

    @property
    def empty(self) -> bool:
        """Nothing more may be spent."""
        return self._limit is not None and self.spent >= self._limit


def open_purse(options: Options, rates: Rates | None) -> Purse | None:
    """For the texts of a run; None where nobody has stated a price. Raises InvalidRequest where --max_usd could not be counted."""
    if rates is None:
        if options.max_usd is not None:
            raise InvalidRequest(f"--max_usd needs a price of the target: {UNPRICED}")
        return None
    return Purse(Terms(rates, options.target_share, options.draft_watts, options.target_watts), options.max_usd)
