"""Charges for the requests of a run, and the run's spending limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from inference.cost.billing import Billing, Figure, Quality
from inference.errors import InvalidRequest
from inference.planner.prices import Usage
from inference.text_log import Traffic
from outrider.money.goal import UNPRICED


class _Meter:
    """Counts the seconds in which requests run. Thread-safe.

    `wall` counts a second once, however many requests run in it. `shared` is the charge of one
    request: concurrent requests share a second evenly.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.wall = self.shared = 0.0
        self._clock, self._texts, self._at, self._lock = clock, 0, 0.0, threading.Lock()

    def read(self, texts: int = 0) -> tuple[float, float]:
        """Return `wall` and `shared`, and add `texts` to the number of running requests."""
        with self._lock:
            now = self._clock()
            if self._texts:
                self.wall += now - self._at
                self.shared += (now - self._at) / self._texts
            self._at, self._texts = now, self._texts + texts
            return self.wall, self.shared


class Charge:
    """Usage of one request, counted until the charge is closed."""

    def __init__(self, budget: RunBudget, meter: _Meter) -> None:
        self.budget, self._meter = budget, meter
        self._began, self._taken = meter.read(1)[1], Usage()
        self._ended: float | None = None

    def take(self, drafting: float, traffic: Traffic) -> None:
        """Set the request's total seconds of drafting, and its session's total bytes."""
        self._taken = Usage(0.0, drafting, traffic.bytes_up, traffic.bytes_down)

    def close(self) -> None:
        """Stop charging time. Idempotent."""
        if self._ended is None:
            self._ended = self._meter.read(-1)[1]

    @property
    def usage(self) -> Usage:
        """The request's usage; of a second with concurrent requests only its share counts."""
        until = self._meter.read()[1] if self._ended is None else self._ended
        return self._taken._replace(wall=until - self._began)

    @property
    def usd(self) -> float | None:
        """The request's US dollars by the known prices; None if the target has no price."""
        return self.budget.price(self.usage)


class RunBudget:
    """Counts the usage of all requests of a run. A second of the target is paid once, however many
    requests run in it.

    limit: US dollars; None for no limit

    Raises InvalidRequest for a limit without a price of the target.
    """

    def __init__(
        self,
        billing: Billing,
        limit: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if limit is not None and not billing.priced:
            raise InvalidRequest(f"--max_usd needs a price of the target: {UNPRICED}")
        self.billing, self._limit = billing, limit
        self._meter, self._lock = _Meter(clock), threading.Lock()
        self._open, self._closed = list[Charge](), Usage()

    @contextmanager
    def charge(self) -> Iterator[Charge]:
        """Yield the charge of one request, counted until the context ends, also on failure."""
        charge = Charge(self, self._meter)
        with self._lock:
            self._open.append(charge)
        try:
            yield charge
        finally:
            charge.close()
            with self._lock:
                self._open.remove(charge)
                self._closed = self._closed.plus(charge.usage)

    def price(self, usage: Usage) -> float | None:
        """Return this usage's US dollars by the known prices; None if the target has no price."""
        return self.billing.known_prices.of(usage) if self.billing.priced else None

    def cost(self, usage: Usage, tokens: int) -> Figure:
        """Return a request's cost in US dollars: a lower bound if some prices are unknown."""
        usd, source = self.price(usage), self.billing.source or ""
        if usd is None:
            return Figure.unavailable("the target has no price")
        if not tokens:
            return Figure.measured(usd, source)
        total = self.billing.figures(tokens, usage)["total_cost"]
        if total.value is None:
            source = f"at least, by {source}; not counted: {total.source}"
            return Figure(usd, Quality.ESTIMATED, source, lower_bound=True)
        return Figure(usd, total.quality, source or total.source)

    def energy(self, usage: Usage, tokens: int) -> Figure:
        """Return the joules that this machine used to draft a request, by --draft_watts."""
        if not tokens:
            return Figure.measured(0.0, "no tokens were generated")
        return self.billing.figures(tokens, usage)["draft_energy"].times(tokens)

    @property
    def usage(self) -> Usage:
        """Usage of all requests so far."""
        with self._lock:
            usage = self._closed
            for charge in self._open:
                usage = usage.plus(charge.usage)
        return usage._replace(wall=self._meter.read()[0])

    @property
    def spent(self) -> float:
        """US dollars spent so far, by the known prices."""
        return self.price(self.usage) or 0.0

    @property
    def empty(self) -> bool:
        """Whether the limit is reached."""
        return self._limit is not None and self.spent >= self._limit
