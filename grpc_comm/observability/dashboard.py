"""The operator's view of a target: sessions, batch, acceptance, tokens a second, dollars per
million.

Rates are of the last minute, or of the time since the start if that is shorter. Dollars are the
price of that time, idle or not, divided by the tokens made in it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from grpc_comm.observability.statistics import (
    Entry,
    Occupancy,
    State,
    Statistics,
    occupancy,
    state_of,
)

WINDOW_SECONDS = 60.0
_VIEW_SECONDS = 0.5  # between two views on a terminal
_LINE_SECONDS = 5.0  # between two lines elsewhere
_MOST_SESSIONS = 20  # shown


class Totals(NamedTuple):
    """Sums since the start, over all models of a target."""

    forwards: float = 0
    rows: float = 0
    nodes: float = 0
    padded_nodes: float = 0
    seconds: float = 0  # in forwards
    tokens: float = 0
    drafts: float = 0
    accepted: float = 0

    @classmethod
    def of(cls, statistics: Statistics) -> Totals:
        models = list(statistics.models.values())
        kinds = [kind for model in models for kind in (model.prefill, model.decode)]
        return cls(
            forwards=sum(kind.forwards for kind in kinds),
            rows=sum(kind.rows for kind in kinds),
            nodes=sum(kind.nodes for kind in kinds),
            padded_nodes=sum(kind.padded_nodes for kind in kinds),
            seconds=sum(kind.seconds for kind in kinds),
            tokens=sum(model.tokens for model in models),
            drafts=sum(model.drafts for model in models),
            accepted=sum(model.accepted for model in models),
        )

    def since(self, before: Totals) -> Totals:
        return Totals(*(now - then for now, then in zip(self, before, strict=True)))


class Recent(NamedTuple):
    """Sums over a stretch of time."""

    seconds: float
    done: Totals
    engines: int


class Window:
    """Totals of the last minute."""

    def __init__(self, now: float) -> None:
        self._samples = deque([(now, Totals())])

    def add(self, now: float, totals: Totals, engines: int) -> Recent:
        """Add a sample; return what happened since the oldest one that is kept."""
        while len(self._samples) > 1 and self._samples[1][0] <= now - WINDOW_SECONDS:
            self._samples.popleft()
        self._samples.append((now, totals))
        since, before = self._samples[0]
        return Recent(now - since, totals.since(before), engines)


class SessionLine(NamedTuple):
    """One session, as it is shown."""

    entry: Entry
    length: int
    state: State


class View(NamedTuple):
    """All that is shown."""

    title: str
    sessions: Sequence[SessionLine]
    occupancies: Sequence[Occupancy]
    recent: Recent
    usd_per_hour: float | None


class Dashboard:
    """Shows the statistics of a target on the console while its context lasts."""

    def __init__(
        self,
        console: Console,
        statistics: Statistics,
        usd_per_hour: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._console, self._usd_per_hour, self._clock = console, usd_per_hour, clock
        self._begun = clock()
        self._statistics, self._window = statistics, Window(self._begun)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def view(self) -> View:
        """Return the view of this moment, and add a sample to the window."""
        served = list(self._statistics.engines)
        models = [f"{one.description.model} on {one.description.device}" for one in served]
        sessions = [
            SessionLine(self._statistics.entry(session), session.length, state_of(session))
            for one in served
            for session in one.engine.sessions
        ]
        recent = self._window.add(self._clock(), Totals.of(self._statistics), len(served))
        occupancies = [occupancy(one.engine) for one in served]
        return View(", ".join(models), sessions, occupancies, recent, self._usd_per_hour)

    def __enter__(self) -> Dashboard:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Say goodbye with the totals."""
        self._stopped.set()
        self._thread.join()
        if error is not None:
            return
        totals, seconds = Totals.of(self._statistics), self._clock() - self._begun
        self._console.print(
            f"the target has ended: {totals.tokens:.0f} tokens in {totals.forwards:.0f} forwards, "
            f"{seconds:.0f} s after its start",
            soft_wrap=True,
            highlight=False,
        )

    def _run(self) -> None:
        if self._console.is_terminal:
            with Live(console=self._console, auto_refresh=False) as live:
                while not self._stopped.wait(_VIEW_SECONDS):
                    live.update(as_table(self.view()), refresh=True)
        while not self._stopped.wait(_LINE_SECONDS):
            line = as_line(self.view())
            self._console.print(line, soft_wrap=True, highlight=False, markup=False)


def as_line(view: View) -> str:
    """Return the totals in one line, without sessions."""
    return "watch: " + ", ".join([*_load(view), *_rates(view), *_price(view)])


def as_table(view: View) -> RenderableType:
    """Return the totals above a table of sessions."""
    heads = ("session", "key", "model", "tokens", "acceptance", "tokens/s", "state")
    table = Table(*heads, box=None, header_style="bold")
    for entry, length, state in view.sessions[:_MOST_SESSIONS]:
        table.add_row(
            *(Text(words) for words in (entry.name, entry.tenant, entry.model)),
            str(length),
            _shown(entry.acceptance_length, ".2f"),
            _shown(entry.tokens_per_second, ".1f"),
            state.value.replace("_", " "),
        )
    left = len(view.sessions) - _MOST_SESSIONS
    more = [Text(f"and {left} more")] if left > 0 else []
    totals = [parts for parts in (_load(view), _rates(view), _price(view)) if parts]
    above = [Text(view.title, style="bold"), *(Text(", ".join(parts)) for parts in totals)]
    return Group(*above, table, *more)


def _load(view: View) -> list[str]:
    held, rows, in_line = (
        sum(getattr(one, name) for one in view.occupancies)
        for name in ("rows_held", "rows", "in_line")
    )
    return [f"sessions {len(view.sessions)}", f"rows held {held} of {rows}", f"in line {in_line}"]


def _rates(view: View) -> list[str]:
    """Return the rates: means of a forward, padding's share of the computed nodes, and the share of
    the time in which a model was in a forward.
    """
    seconds, done, engines = view.recent
    length = 1 + done.accepted / done.drafts if done.drafts else None
    padding = _ratio(done.padded_nodes - done.nodes, done.padded_nodes)
    rows, nodes = _ratio(done.rows, done.forwards), _ratio(done.nodes, done.forwards)
    return [
        f"last {seconds:.0f} s: {_shown(_ratio(done.tokens, seconds), '.1f')} tokens/s",
        f"acceptance length {_shown(length, '.2f')}",
        f"batch {_shown(rows, '.1f')} rows {_shown(nodes, '.1f')} nodes",
        f"padding {_shown(padding, '.0%')}",
        f"{_shown(_ratio(done.forwards, seconds), '.1f')} forwards/s",
        f"model busy {_shown(_ratio(done.seconds, seconds * engines), '.0%')}",
    ]


def _price(view: View) -> list[str]:
    """Return the price of this time, idle or not, over the tokens made in it; nothing where no
    price was given.
    """
    hourly = view.usd_per_hour
    if hourly is None:
        return []
    seconds, done, _ = view.recent
    price = _ratio(hourly / 3600 * seconds * 1e6, done.tokens)
    if price is None:
        return [f"no tokens to share ${hourly:g} an hour"]
    return [f"${price:.2f} per million tokens at ${hourly:g} an hour, idle time included"]


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _shown(number: float | None, form: str) -> str:
    return "-" if number is None else format(number, form)
