"""The report of a comparison: its verdict, its tables, and both on a terminal of 100 columns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from inference.cost.billing import PER_MILLION
from inference.cost.quantity import Figure, Quality
from outrider.compare.arms import BASELINE, FUSED, HYBRID
from outrider.compare.intervals import CONFIDENCE, FigureInterval, Interval, Percentiles
from outrider.compare.measure import Comparison, Trial
from outrider.compare.rows import ResultRow

UNKNOWN = "unavailable"
WIDTH = 100


class Table(NamedTuple):
    """A table whose cells are words. `note` explains them."""

    title: str
    heads: list[str]
    cells: list[list[str]]
    note: str


Column = tuple[str, Callable[[ResultRow], str]]
_WHO: list[Column] = [
    ("added RTT ms", lambda row: f"{row.rtt_ms:g}"),
    ("architecture", lambda row: row.arm.architecture.name),
    ("setting", lambda row: row.arm.setting.label or "-"),
]
_SPEED: list[Column] = [
    ("tokens/s", lambda row: _interval(row.tokens_per_second, 1)),
    ("ratio to target-only", lambda row: _interval(row.ratio, 2)),
    ("TTFT ms", lambda row: _milliseconds(row.time_to_first_token)),
    ("TPOT ms", lambda row: _milliseconds(row.time_per_output_token)),
    ("inter-chunk ms", lambda row: _milliseconds(row.inter_chunk)),
    ("identical", lambda row: _identical(row)),
]
_WORK: list[Column] = [
    ("tokens", lambda row: str(row.tokens)),
    ("forwards", lambda row: str(row.forwards)),
    ("lone", lambda row: f"{row.lone_forwards / row.forwards:.0%}" if row.forwards else "-"),
    ("length", lambda row: f"{row.acceptance_length:.2f}"),
    ("drafted", lambda row: f"{row.acceptance_length_drafted:.2f}"),
    ("acceptance", lambda row: "-" if row.acceptance is None else f"{row.acceptance:.2f}"),
    ("by position", lambda row: " ".join(f"{at:.2f}" for at in row.acceptance_by_position) or "-"),
    ("calls", lambda row: f"{row.draft_calls / row.tokens:.2f}"),
    ("draft", lambda row: _each(row, row.draft_seconds)),
    ("rest", lambda row: _each(row, row.rest_seconds)),
    ("queue", lambda row: _each(row, row.queue_seconds)),
    ("target", lambda row: _each(row, row.target_seconds)),
    ("bytes up", lambda row: f"{row.bytes_up / row.tokens:.0f}"),
    ("bytes down", lambda row: f"{row.bytes_down / row.tokens:.0f}"),
]
_COST: list[Column] = [
    ("ms a token", lambda row: _time(row.seconds_per_token)),
    ("$ per million", lambda row: _cost(row.usd_per_million, 3)),
    ("by forwards", lambda row: _cost(row.usd_per_million_by_forwards, 3)),
    ("J per million", lambda row: _cost(row.joules_per_million, 0)),
    ("J here", lambda row: _cost(row.joules_here_per_million, 0)),
    ("Pareto", lambda row: "*" * row.pareto),
    ("MB here", lambda row: _megabytes(row.memory_here)),
    ("MB target", lambda row: _megabytes(row.memory_target)),
]
_BRIEF: list[Column] = [
    ("RTT", lambda row: f"{row.rtt_ms:g}"),
    ("arm", lambda row: row.arm.name + " *" * row.pareto),
    ("tokens/s", lambda row: f"{row.tokens_per_second.median:.1f}"),
    ("x target-only", lambda row: _interval(row.ratio, 2)),
    ("TPOT", lambda row: _time(row.time_per_output_token and row.time_per_output_token.p50)),
    ("length", lambda row: f"{row.acceptance_length:.2f}"),
    ("same", lambda row: _identical(row)),
]
_PRICES: list[tuple[str, Callable[[ResultRow], Figure]]] = [
    ("$/1M", lambda row: row.usd_per_million.median),
    ("J/token", lambda row: row.joules_per_million.median.times(1 / PER_MILLION)),
]


def tables(comparison: Comparison) -> list[Table]:
    """The tables of report.md: speed, work, cost and the sweep."""
    rows = comparison.rows
    speed = (
        f"Medians with their {CONFIDENCE:.0%} bootstrap interval over texts; times are p50 / p90 / "
        "p99 / largest. Prompts are warm: the target holds their keys."
    )
    work = (
        "lone: forwards without candidates; length: tokens a forward; drafted: the same with "
        "candidates; acceptance: chance that the next token is among the candidates for it; calls: "
        "of the draft, a token; ms a token of draft, rest (neither computed nor in line at the "
        "target), queue and target; position 1 is the first guess; bytes a token."
    )
    cost = (
        "Time after a text's first chunk. J here: this machine as a whole, idle power included. "
        "Pareto: no row at this round trip is as good in everything and better in something. "
        f"Memory: peak of the process, which holds the models of all its arms. {comparison.account}"
    )
    return [
        _of_rows("Speed", _SPEED, rows, speed),
        _of_rows("Work", _WORK, rows, work),
        _of_rows("Cost", _COST, rows, cost),
        _of_trials(comparison.trials),
    ]


def brief(comparison: Comparison) -> Table:
    """The table of the terminal. Costs that are known of no arm are left out."""
    rows, columns = comparison.rows, list(_BRIEF)
    for head, read in _PRICES:
        if any(read(row).value is not None for row in rows):
            columns.append((head, partial(_short, read)))
    note = (
        "RTT: added ms; TPOT: p50 ms; length: tokens a forward; same: texts as target-only makes; "
        "~ estimate, >= lower bound; * Pareto: nothing at this RTT is as good in all and better."
    )
    cells = [[read(row) for _, read in columns] for row in rows]
    return Table("", [head for head, _ in columns], cells, note)


def print_comparison(comparison: Comparison) -> None:
    """Verdict, table and remarks on the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable

    width = Console().width if sys.stdout.isatty() else WIDTH
    console = Console(width=min(width, WIDTH), highlight=False, markup=False)
    console.print(comparison.title)
    for number, line in enumerate(verdict(comparison), 1):
        console.print(f"{number}. {line}")
    table = brief(comparison)
    shown = RichTable(
        box=SIMPLE_HEAD,
        caption=table.note,
        caption_justify="left",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for number, head in enumerate(table.heads):
        shown.add_column(head, justify="left" if number == 1 else "right", no_wrap=True)
    for cells in table.cells:
        shown.add_row(*cells)
    console.print(shown)
    for line in (comparison.account, *comparison.remarks):
        console.print(line)
    if comparison.options.out is None:
        console.print("--out DIR: all tables, differing texts and plots.")


def figure_words(
    known: Figure, digits: int, least: str = "at least ", about: str = "about "
) -> str:
    """A number, marked where it is an estimate or a lower bound; never 0 for what is not known."""
    if known.value is None:
        return UNKNOWN
    bound = least if known.lower_bound else about * (known.quality is Quality.ESTIMATED)
    return f"{bound}{known.value:.{digits}f}"


def _of_rows(title: str, columns: Sequence[Column], rows: Sequence[ResultRow], note: str) -> Table:
    every = [*_WHO, *columns]
    cells = [[read(row) for _, read in every] for row in rows]
    return Table(title, [head for head, _ in every], cells, note)


def _of_trials(trials: Sequence[Trial]) -> Table:
    cells = [
        [
            f"{trial.round_trip * 1e3:g}",
            trial.arm.architecture.name,
            trial.arm.setting.label or "-",
            str(len(trial.texts)),
            f"{trial.seconds_per_token * 1e3:.2f}",
            "chosen" * trial.chosen if trial.had_rivals else "no choice",
        ]
        for trial in trials
    ]
    heads = ["added RTT ms", "architecture", "setting", "texts", "ms a token", ""]
    note = (
        "Whole texts, by halving: all settings try one text, the better half two more. Not in "
        "the rows above."
    )
    return Table("Sweep", heads, cells, note)


def _interval(value: Interval | None, digits: int) -> str:
    if value is None:
        return UNKNOWN
    return f"{value.median:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def _cost(value: FigureInterval, digits: int) -> str:
    interval = "" if value.low is None else f" [{value.low:.{digits}f}, {value.high:.{digits}f}]"
    return figure_words(value.median, digits) + interval


def _short(read: Callable[[ResultRow], Figure], row: ResultRow) -> str:
    known = read(row)
    return "-" if known.value is None else figure_words(known, 2, ">=", "~")


def _identical(row: ResultRow) -> str:
    return UNKNOWN if row.identical_texts is None else f"{row.identical_texts}/{row.texts}"


def _milliseconds(value: Percentiles | None) -> str:
    return "-" if value is None else " / ".join(f"{part * 1e3:.1f}" for part in value)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.2f}"


def _each(row: ResultRow, seconds: float) -> str:
    """Milliseconds a token."""
    return _time(seconds / row.tokens)


def _megabytes(size: int | None) -> str:
    return UNKNOWN if size is None else f"{size / 1e6:.0f}"


def verdict(comparison: Comparison) -> list[str]:
    """The verdict, in three lines at most. It claims nothing within an interval."""
    if not comparison.has_baseline:
        return ["No speed-up is given: target-only was not run."]
    trips = comparison.options.rtt
    lines = [
        "; ".join(_leader_words(trip, comparison.at(trip)) for trip in trips) + ".",
        " ".join(filter(None, (_advice(comparison), _instead(comparison)))),
        _cheapest(comparison) if comparison.options.cs else "",
    ]
    return [line for line in lines if line]


def leader(rows: Sequence[ResultRow]) -> ResultRow | None:
    """The fastest row at one round trip: an arm that is faster than target-only, or target-only
    where every other arm is slower. None where neither can be told.
    """
    faster = [row for row in rows if row.faster]
    if faster:
        return max(faster, key=lambda row: row.tokens_per_second.median)
    alone = next((row for row in rows if row.arm.architecture.name == BASELINE), None)
    return alone if all(row.slower for row in rows if row is not alone) else None


def _leader_words(rtt: float, rows: Sequence[ResultRow]) -> str:
    first = leader(rows)
    if first is None:
        others = [row for row in rows if row.arm.architecture.name != BASELINE]
        best = max(others, key=lambda row: row.ratio or (0.0,))
        return (
            f"{rtt:g} ms: nothing can be told from target-only (best: {best.arm.name} {_x(best)})"
        )
    against = f", {_x(first)}" if first.arm.architecture.name != BASELINE else ""
    speed = f"{first.tokens_per_second.median:.1f} tokens/s"
    return f"{rtt:g} ms: {first.arm.name} is fastest{against} ({speed})"


def _x(row: ResultRow) -> str:
    """The ratio to target-only with its interval."""
    assert row.ratio is not None
    return f"{row.ratio.median:.2f}x target-only [{row.ratio.low:.2f}, {row.ratio.high:.2f}]"


def _advice(comparison: Comparison) -> str:
    """At which round trips drafting here, or beside the target, is faster than target-only."""
    here = [row for row in comparison.rows if row.arm.architecture.drafts_here]
    colocated = [row for row in comparison.rows if row.arm.architecture.name == FUSED]
    places = {"on this machine": here, "beside the target": colocated}
    said = [f"{where} {_outcomes(rows)}" for where, rows in places.items() if rows]
    return f"Drafting {'; '.join(said)}." if said else ""


def _instead(comparison: Comparison) -> str:
    """Advice where hybrid, which `outrider run` does by default, did not pay."""
    ways = dict[str, list[str]]()
    for row in comparison.rows:
        first = leader(comparison.at(row.rtt_ms))
        if row.arm.architecture.name == HYBRID and not row.faster and first is not None:
            ways.setdefault(first.arm.architecture.command, []).append(f"{row.rtt_ms:g} ms")
    if not ways:
        return ""
    said = "; ".join(f"{command} at {', '.join(trips)}" for command, trips in ways.items())
    shared = not (comparison.options.target_host or comparison.options.emulate)
    elsewhere = " For a target elsewhere give --emulate PROFILE or --target_host HOST:PORT."
    return f"hybrid is what `outrider run` does; faster here: {said}." + elsewhere * shared


def _outcomes(rows: Sequence[ResultRow]) -> str:
    """Outcomes at each round trip, by the best of these rows."""
    trips: dict[str, list[str]] = {}
    for trip in dict.fromkeys(row.rtt_ms for row in rows):
        there = [row for row in rows if row.rtt_ms == trip]
        outcome = "cannot be told from target-only"
        if any(row.faster for row in there):
            outcome = "pays"
        elif all(row.slower for row in there):
            outcome = "is slower than target-only"
        trips.setdefault(outcome, []).append(f"{trip:g}")
    return ", ".join(f"{outcome} at {', '.join(where)} ms" for outcome, where in trips.items())


def _cheapest(comparison: Comparison) -> str:
    """The cheapest position of the knob at the first round trip, in the first unit that is known of
    all.
    """
    rows = [
        row for row in comparison.at(comparison.options.rtt[0]) if row.arm.setting.knob is not None
    ]
    for name, unit in (("usd_per_million", "$"), ("joules_per_million", "J")):
        costs = [(getattr(row, name), row.arm.name) for row in rows]
        if any(cost.median.value is None for cost, _ in costs):
            continue
        least, label = min(costs, key=lambda one: one[0].median.value)
        others = [cost for cost, other in costs if other != label]
        told = all(least.high < cost.low for cost in others)
        return (
            f"Cheapest: {label}, {unit}{least.median.value:.3g} a million tokens "
            f"[{least.low:.3g}, {least.high:.3g}]"
            + (", but it cannot be told from the others." * (not told) or ".")
        )
    return "Nothing is known of the cost: no price and no joules."
