"""What the texts of a run take and cost, and the most that they may cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from inference.cost.effort import Effort
from inference.cost.objective import Terms
from inference.errors import InvalidRequest
from inference.stats import Traffic
from outrider.money.goals import UNPRICED, Stated, terms_of
from outrider.options.groups import GoalOptions


class _Meter:
    """Counts the seconds in which texts are made, from any thread.

    `held` counts a second once, however many texts are made in it. `each` counts what one text is
    charged, where texts that are made together share a second evenly.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.held = self.each = 0.0
        self._clock, self._texts, self._at, self._lock = clock, 0, 0.0, threading.Lock()

    def read(self, more: int = 0) -> tuple[float, float]:
        """The values of `held` and `each` now. Then `more` texts begin, or end if it is
        negative.
        """
        with self._lock:
            now = self._clock()
            if self._texts:
                self.held += now - self._at
                self.each += (now - self._at) / self._texts
            self._at, self._texts = now, self._texts + more
            return self.held, self.each


class Tab:
    """Counts what one text takes, from now until the tab is closed."""

    def __init__(self, purse: Purse, meter: _Meter) -> None:
        self.purse, self._meter = purse, meter
        self._began, self._taken = meter.read(1)[1], Effort()
        self._ended: float | None = None

    def take(self, drafting: float, traffic: Traffic) -> None:
        """Set the text's seconds of drafting and the session's bytes, both counted from the
        beginning.
        """
        self._taken = Effort(0.0, drafting, traffic.bytes_up, traffic.bytes_down)

    def close(self) -> None:
        """Stop charging time. Idempotent."""
        if self._ended is None:
            self._ended = self._meter.read(-1)[1]

    @property
    def effort(self) -> Effort:
        """What the text took, with its share of the seconds in which it was made beside others."""
        until = self._meter.read()[1] if self._ended is None else self._ended
        return self._taken._replace(wall=until - self._began)

    @property
    def usd(self) -> float | None:
        """US dollars of the text, as far as prices are known; None where nobody has stated one."""
        return self.purse.price(self.effort)


class Purse:
    """Counts what all texts of a run take. One user holds one target: seconds in which several
    texts are made are paid once.

    source: who states the prices; None where nobody does
    limit: US dollars; None where only the count is wanted
    """

    def __init__(
        self,
        terms: Terms,
        limit: float | None = None,
        *,
        source: str | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if limit is not None and not limit > 0:
            raise InvalidRequest(f"--max_usd is above 0: got {limit}")
        if limit is not None and source is None:
            raise InvalidRequest(f"--max_usd needs a price of the target: {UNPRICED}")
        self.terms, self.source = terms, source
        self._prices, self._limit = terms.known_costs(), limit
        self._meter, self._lock = _Meter(clock), threading.Lock()
        self._open, self._closed = list[Tab](), Effort()

    @contextmanager
    def text(self) -> Iterator[Tab]:
        """A tab for one text, which is charged while it is made, also if it fails."""
        tab = Tab(self, self._meter)
        with self._lock:
            self._open.append(tab)
        try:
            yield tab
        finally:
            tab.close()
            with self._lock:
                self._open.remove(tab)
                self._closed = self._closed.plus(tab.effort)

    def price(self, effort: Effort) -> float | None:
        """US dollars of this effort, as far as prices are known; None where nobody has stated
        one.
        """
        return None if self.source is None else self._prices.of(effort)

    @property
    def effort(self) -> Effort:
        """What all texts so far took."""
        with self._lock:
            taken = self._closed
            for tab in self._open:
                taken = taken.plus(tab.effort)
        return taken._replace(wall=self._meter.read()[0])

    @property
    def spent(self) -> float:
        """US dollars so far, as far as prices are known."""
        return self.price(self.effort) or 0.0

    @property
    def empty(self) -> bool:
        """Whether nothing more may be spent."""
        return self._limit is not None and self.spent >= self._limit


def open_purse(options: GoalOptions, stated: Stated | None) -> Purse:
    """A purse for the texts of a run. Raises InvalidRequest where --max_usd could not be
    counted.
    """
    if stated is None:
        return Purse(terms_of(options, None), options.max_usd)
    return Purse(terms_of(options, stated.rates), options.max_usd, source=stated.source)
