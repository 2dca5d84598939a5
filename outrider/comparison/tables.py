"""The comparison as tables, once in words and numbers: shown on the terminal, and written as
Markdown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from inference.cost.quantity import Figure, Quality
from outrider.comparison.measure import Comparison
from outrider.comparison.rows import Row
from outrider.comparison.spread import CONFIDENCE, Interval, Percentiles
from outrider.comparison.sweep import Trial

UNKNOWN = "unavailable"
_WIDTH = 170  # where output is no terminal


class Table(NamedTuple):
    """Cells in words; `note` is what they mean."""

    title: str
    heads: list[str]
    cells: list[list[str]]
    note: str


Column = tuple[str, Callable[[Row], str]]
_WHO: list[Column] = [
    ("added RTT ms", lambda row: f"{row.rtt_ms:g}"),
    ("architecture", lambda row: row.architecture),
    ("setting", lambda row: row.setting or "-"),
]
_SPEED: list[Column] = [
    ("tokens/s", lambda row: _interval(row.tokens_per_second, 1)),
    ("ratio to target-only", lambda row: _interval(row.ratio, 2)),
    ("TTFT ms", lambda row: _milliseconds(row.time_to_first_token)),
    ("TPOT ms", lambda row: _milliseconds(row.time_per_output_token)),
    ("inter-chunk ms", lambda row: _milliseconds(row.inter_chunk)),
    (
        "identical",
        lambda row: (
            UNKNOWN if row.identical_texts is None else f"{row.identical_texts} of {row.texts}"
        ),
    ),
]
_WORK: list[Column] = [
    ("tokens", lambda row: str(row.tokens)),
    ("forwards", lambda row: str(row.forwards)),
    ("lone", lambda row: f"{row.lone_forwards / row.forwards:.0%}" if row.forwards else "-"),
    ("length", lambda row: f"{row.acceptance_length:.2f}"),
    ("drafted", lambda row: f"{row.acceptance_length_drafted:.2f}"),
    ("rate", lambda row: f"{row.acceptance_rate:.2f}"),
    (
        "by position",
        lambda row: " ".join(f"{share:.2f}" for share in row.acceptance_by_position) or "-",
    ),
    ("calls", lambda row: f"{row.draft_calls / row.tokens:.2f}"),
    ("draft", lambda row: _share(row, row.draft_seconds)),
    ("rest", lambda row: _share(row, row.rest_seconds)),
    ("queue", lambda row: _share(row, row.queue_seconds)),
    ("target", lambda row: _share(row, row.target_seconds)),
    (
        "bytes up / down",
        lambda row: f"{row.bytes_up / row.tokens:.0f} / {row.bytes_down / row.tokens:.0f}",
    ),
]
_COST: list[Column] = [
    ("ms a token", lambda row: _time(row.seconds_per_token)),
    ("predicted", lambda row: _time(row.predicted)),
    ("error", lambda row: "-" if row.error is None else f"{row.error:+.0%}"),
    ("$ per million", lambda row: _dollars(row)),
    ("J a token", lambda row: figure(row.joules_per_token, 3)),
    (
        "memory here / target MB",
        lambda row: f"{_megabytes(row.memory_here)} / {_megabytes(row.memory_target)}",
    ),
]


def tables(comparison: Comparison) -> list[Table]:
    """Speed, work, cost and the sweep."""
    rows = comparison.rows
    low = f"{CONFIDENCE:.0%} bootstrap interval over texts"
    speed = (
        f"Medians with their {low}; times are p50 / p90 / p99. Prompts are warm: the target "
        "holds their keys."
    )
    work = (
        "lone: forwards without candidates; length: tokens a forward; drafted: the same with "
        "candidates; calls: of the draft, a token; ms a token of draft, rest (neither computed nor "
        "in line at the target), queue and target; position 1 is the first guess; bytes a token."
    )
    cost = (
        "Time after a text's first chunk. Memory: peak of the process, which holds the models "
        "of all its arms."
    )
    return [
        _of_rows("Speed", _SPEED, rows, speed),
        _of_rows("Work", _WORK, rows, work),
        _of_rows("Prediction and cost", _COST, rows, f"{cost} {comparison.account}"),
        _of_trials(comparison.trials),
    ]


def print_comparison(comparison: Comparison, words: Sequence[str]) -> None:
    """All of it on the terminal."""
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)
    console.print(f"target on {comparison.device}", markup=False)
    for table in tables(comparison):
        shown = RichTable(*table.heads, title=table.title, caption=table.note)
        for cells in table.cells:
            shown.add_row(*cells)
        console.print(shown)
    for line in [*comparison.remarks, *words, *differences(comparison.rows)]:
        console.print(f"- {line}", markup=False)


def markdown(comparison: Comparison, words: Sequence[str]) -> str:
    """report.md, without what stands beside it."""
    parts = [f"# Architectures compared\n\nTarget on {comparison.device}."]
    parts += [
        "## What it says",
        "\n".join(f"- {line}" for line in words),
        "\n".join(f"- {line}" for line in comparison.remarks),
    ]
    for table in tables(comparison):
        lines = [_line(table.heads), _line(["---"] * len(table.heads)), *map(_line, table.cells)]
        parts += [f"## {table.title}", "\n".join(lines), table.note]
    return (
        "\n\n".join(
            [
                *parts,
                "## Texts that differ",
                "\n".join(f"- {line}" for line in differences(comparison.rows)) or "None.",
            ]
        )
        + "\n"
    )


def differences(rows: Sequence[Row]) -> list[str]:
    """The first difference of every text that is not the target-only one, and how near the two
    tokens were.
    """
    lines = []
    for row in rows:
        for one in row.differences:
            margin = (
                f"margin {one.margin.value:.2g}"
                if one.margin.value is not None
                else f"margin unavailable: {one.margin.source}"
            )
            at = (
                f"prompt {one.prompt} parts at token {one.at} ({one.ours} for {one.theirs}, "
                f"{margin})"
            )
            lines.append(f"{row.architecture} {row.setting} at {row.rtt_ms:g} ms: {at}")
    return lines


def figure(known: Figure, digits: int) -> str:
    """A number, marked where it is an estimate or a lower bound; never 0 for what is not known."""
    if known.value is None:
        return UNKNOWN
    bound = (
        "at least "
        if known.source.startswith("at least")
        else "about "
        if known.quality is Quality.ESTIMATED
        else ""
    )
    return f"{bound}{known.value:.{digits}f}"


def _of_rows(title: str, columns: Sequence[Column], rows: Sequence[Row], note: str) -> Table:
    every = [*_WHO, *columns]
    return Table(
        title, [head for head, _ in every], [[read(row) for _, read in every] for row in rows], note
    )


def _of_trials(trials: Sequence[Trial]) -> Table:
    cells = [
        [
            f"{trial.round_trip * 1e3:g}",
            trial.arm.name,
            trial.arm.setting or "-",
            str(len(trial.texts)),
            f"{trial.seconds_per_token * 1e3:.2f}",
            _standing(trial, trials),
        ]
        for trial in trials
    ]
    heads = ["added RTT ms", "architecture", "setting", "texts", "ms a token", ""]
    note = (
        "Whole texts, by halving: all settings try one text, the better half two more. Not in "
        "the rows above; predictions start here."
    )
    return Table("Sweep", heads, cells, note)


def _standing(trial: Trial, trials: Sequence[Trial]) -> str:
    rivals = [
        other
        for other in trials
        if other.arm.name == trial.arm.name and other.round_trip == trial.round_trip
    ]
    if all(other.arm.setting == trial.arm.setting for other in rivals):
        return "no choice"
    return "chosen" if trial.chosen else ""


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _interval(value: Interval | None, digits: int) -> str:
    return (
        UNKNOWN
        if value is None
        else f"{value.median:.{digits}f} ({value.low:.{digits}f} to {value.high:.{digits}f})"
    )


def _milliseconds(value: Percentiles | None) -> str:
    return "-" if value is None else " / ".join(f"{part * 1e3:.1f}" for part in value)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.2f}"


def _share(row: Row, seconds: float) -> str:
    return f"{seconds / row.tokens * 1e3:.2f}"


def _dollars(row: Row) -> str:
    """Where the target is held all the time, and where its forwards alone are paid."""
    if row.usd_per_million.value is None:
        return figure(row.usd_per_million, 2)
    return f"{figure(row.usd_per_million, 2)} ({figure(row.usd_per_million_by_forwards, 2)})"


def _megabytes(size: int | None) -> str:
    return UNKNOWN if size is None else f"{size / 1e6:.0f}"
