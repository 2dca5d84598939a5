"""The operator's view of a target in the terminal: sessions, batch, acceptance, tokens a second and
dollars per million tokens.

Rates are of the last minute, or of the time since the start if that is shorter. Dollars are the
price of that time, idle or not, divided by the tokens made in it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from grpc_comm.ledger import Entry, Ledger, Occupancy, State, occupancy, state_of
from grpc_comm.observer import ServiceObserver
from grpc_comm.translate import Description
from inference.engine.engine import Engine
from inference.engine.forward import Commit, Forward, Observer
from inference.engine.session import Opened, Session

WINDOW_SECONDS = 60.0
_VIEW_SECONDS, _LINE_SECONDS = (
    0.5,
    5.0,
)  # between two views on a terminal, and between two lines elsewhere
_MOST_SESSIONS = 20  # shown


class Totals(NamedTuple):
    """What one or more engines did since the start."""

    forwards: float = 0
    rows: float = 0
    nodes: float = 0
    computed_nodes: float = 0  # padding included
    model_seconds: float = 0
    tokens: float = 0
    drafts: float = 0
    accepted: float = 0

    def combined(self, other: Totals, sign: int = 1) -> Totals:
        return Totals(*(mine + sign * theirs for mine, theirs in zip(self, other, strict=True)))


class Rates(NamedTuple):
    """A stretch of time; None where nothing happened that could be divided by."""

    seconds: float
    done: Totals
    engines: int

    @property
    def tokens_per_second(self) -> float | None:
        return _ratio(self.done.tokens, self.seconds)

    @property
    def forwards_per_second(self) -> float | None:
        return _ratio(self.done.forwards, self.seconds)

    @property
    def acceptance_length(self) -> float | None:
        """Tokens of a forward of a session with candidates."""
        return 1 + self.done.accepted / self.done.drafts if self.done.drafts else None

    @property
    def rows(self) -> float | None:
        """In a forward."""
        return _ratio(self.done.rows, self.done.forwards)

    @property
    def nodes(self) -> float | None:
        """In a forward, of all rows, without padding."""
        return _ratio(self.done.nodes, self.done.forwards)

    @property
    def padding(self) -> float | None:
        """Share of the computed nodes."""
        return _ratio(self.done.computed_nodes - self.done.nodes, self.done.computed_nodes)

    @property
    def busy(self) -> float | None:
        """Share of the time in which a model was in a forward."""
        return _ratio(self.done.model_seconds, self.seconds * self.engines)

    def usd_per_million(self, usd_per_hour: float) -> float | None:
        """The price of this time, idle or not, for a million tokens."""
        return _ratio(usd_per_hour / 3600 * self.seconds * 1e6, self.done.tokens)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


class Window:
    """Totals of the last minute."""

    def __init__(self, now: float) -> None:
        self._samples = deque([(now, Totals())])

    def add(self, now: float, totals: Totals, engines: int) -> Rates:
        """What happened since the oldest sample that is kept."""
        while len(self._samples) > 1 and self._samples[1][0] <= now - WINDOW_SECONDS:
            self._samples.popleft()
        self._samples.append((now, totals))
        since, before = self._samples[0]
        return Rates(now - since, totals.combined(before, -1), engines)


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
    rates: Rates
    usd_per_hour: float | None


class Watch(ServiceObserver):
    """Counts what happens and, while its context lasts, shows it on the console."""

    def __init__(
        self,
        console: Console,
        usd_per_hour: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._console, self._usd_per_hour, self._clock = console, usd_per_hour, clock
        self._ledger = Ledger()
        self._engines: list[tuple[Engine, Description, _EngineTotals]] = []
        self._window = Window(clock())
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def engine(self, engine: Engine, description: Description) -> Observer:
        totals = _EngineTotals(description.model, self._ledger)
        self._engines.append((engine, description, totals))
        return totals

    def session_opened(self, session: Session, session_id: str, tenant: str) -> None:
        entry = self._ledger.entry(session)
        entry.session_id, entry.tenant = session_id, tenant

    def view(self) -> View:
        """This moment; adds a sample to the window."""
        engines = list(self._engines)
        title = ", ".join(
            f"{description.model} on {description.device}" for _, description, _ in engines
        )
        sessions = [session for engine, _, _ in engines for session in engine.sessions]
        lines = [
            SessionLine(self._ledger.entry(session), session.length, state_of(session))
            for session in sessions
        ]
        totals = Totals()
        for _, _, counted in engines:
            totals = totals.combined(counted.totals)
        rates = self._window.add(self._clock(), totals, len(engines))
        return View(
            title, lines, [occupancy(engine) for engine, _, _ in engines], rates, self._usd_per_hour
        )

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        live = (
            Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        )
        with live or nullcontext():
            while not self._stopped.wait(_VIEW_SECONDS if live else _LINE_SECONDS):
                if live:
                    live.update(as_table(self.view()), refresh=True)
                else:
                    self._console.print(
                        as_line(self.view()), soft_wrap=True, highlight=False, markup=False
                    )


class _EngineTotals(Observer):
    """Counts what one engine tells; written on its thread, read on any."""

    def __init__(self, model: str, ledger: Ledger) -> None:
        self.totals = Totals()
        self._model, self._ledger = model, ledger

    def forward(self, done: Forward) -> None:
        computed = done.padded_rows * done.padded_nodes
        self.totals = self.totals.combined(
            Totals(1, done.rows, done.nodes, computed, done.model_seconds)
        )

    def opened(self, session: Session, opened: Opened) -> None:
        self._ledger.opened(self._model, session, opened)

    def committed(self, session: Session, commit: Commit) -> None:
        self._ledger.committed(session, commit)
        drafts = commit.candidates > 0
        self.totals = self.totals.combined(
            Totals(tokens=len(commit.tokens), drafts=drafts, accepted=commit.accepted)
        )


def as_line(view: View) -> str:
    """The totals, without sessions."""
    return "watch: " + ", ".join([*_load(view), *_rates(view), *_price(view)])


def as_table(view: View) -> RenderableType:
    """Totals above the sessions."""
    table = Table(
        "session",
        "key",
        "model",
        "tokens",
        "acceptance",
        "tokens/s",
        "state",
        box=None,
        header_style="bold",
    )
    for line in view.sessions[:_MOST_SESSIONS]:
        entry = line.entry
        numbers = (
            str(line.length),
            _shown(entry.acceptance_length, "{:.2f}"),
            _shown(entry.tokens_per_second, "{:.1f}"),
        )
        table.add_row(
            Text(entry.name),
            Text(entry.tenant),
            Text(entry.model),
            *numbers,
            line.state.value.replace("_", " "),
        )
    left = len(view.sessions) - _MOST_SESSIONS
    more = [Text(f"and {left} more")] if left > 0 else []
    heads = [
        Text(view.title, style="bold"),
        *(Text(", ".join(parts)) for parts in (_load(view), _rates(view), _price(view)) if parts),
    ]
    return Group(*heads, table, *more)


def _load(view: View) -> list[str]:
    held, rows, in_line = (
        sum(getattr(one, name) for one in view.occupancies)
        for name in ("rows_held", "rows", "in_line")
    )
    return [f"sessions {len(view.sessions)}", f"rows held {held} of {rows}", f"in line {in_line}"]


def _rates(view: View) -> list[str]:
    rates = view.rates
    return [
        f"last {rates.seconds:.0f} s: {_shown(rates.tokens_per_second, '{:.1f}')} tokens/s",
        f"acceptance length {_shown(rates.acceptance_length, '{:.2f}')}",
        f"batch {_shown(rates.rows, '{:.1f}')} rows {_shown(rates.nodes, '{:.1f}')} nodes",
        f"padding {_shown(rates.padding, '{:.0%}')}",
        f"{_shown(rates.forwards_per_second, '{:.1f}')} forwards/s",
        f"model busy {_shown(rates.busy, '{:.0%}')}",
    ]


def _price(view: View) -> list[str]:
    """Nothing when no price was given."""
    if view.usd_per_hour is None:
        return []
    price = view.rates.usd_per_million(view.usd_per_hour)
    if price is None:
        return [f"no tokens to share ${view.usd_per_hour:g} an hour"]
    return [
        f"${price:.2f} per million tokens at ${view.usd_per_hour:g} an hour, idle time included"
    ]


def _shown(number: float | None, form: str) -> str:
    return "-" if number is None else form.format(number)
