"""The report of a run: verdict and table on a terminal of 100 columns, and in a directory as
Markdown, JSON, CSV and plots.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill
from typing import Any

from inference.command import say
from inference.cost.billing import PER_MILLION
from inference.cost.quantity import Figure, Quality
from inference.errors import MissingExtra
from inference.files import write_whole
from outrider.measure.figures import AGAIN, Row
from outrider.measure.journal import RunRecord
from outrider.measure.plots import draw
from outrider.terminal.tables import aligned, write_csv

WIDTH = 100
NOTE = (
    "x target-only: speed-up, geometric mean over prompts [95 %]; TPOT: p50 ms; length: tokens a "
    "forward pass; same: texts equal to target-only's; ~ estimate, >= lower bound; * Pareto: no "
    "row over this link is as good in all and better in one."
)
DEPTHS = 6
"""Depths whose acceptance the table shows."""

_PRICES: dict[str, Callable[[Row], Figure]] = {
    "$/1M": lambda row: row.costs["usd_per_million"].median,
    "J/token": lambda row: row.costs["joules_per_million"].median.times(1 / PER_MILLION),
}


@dataclass(frozen=True)
class Report:
    """The results of a run.

    labels: words behind the name of an arm in the table
    below: lines behind the table, as they stand
    remarks: sentences that a reader needs to judge the figures
    sections: further parts of the Markdown file, by their headings
    data: further fields of the JSON file
    """

    title: str
    verdict: Sequence[str]
    rows: Sequence[Row]
    run: RunRecord
    remarks: Sequence[str] = ()
    below: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    sections: Mapping[str, Sequence[str]] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def noise(self) -> str:
        """The A/A pair in words; empty where it was not run."""
        again = [row for row in self.rows if row.arm == AGAIN and row.speed_up is not None]
        if not again:
            return ""
        low = min(row.noise.low for row in again if row.noise)
        high = max(row.noise.high for row in again if row.noise)
        return (
            f"Noise: target-only over itself lies within {low:.2f} and {high:.2f} (95 %). A "
            "speed-up within that of its own link and kind is marked ? and claims nothing."
        )

    def record(self) -> dict[str, Any]:
        """The report as plain data for JSON."""
        return {
            "title": self.title,
            "verdict": list(self.verdict),
            "equal": all(row.equal == row.compared for row in self.rows),
            "remarks": [*self.remarks, *filter(None, [self.noise])],
            "rows": [row.record() for row in self.rows],
            **self.data,
            **self._made_with,
        }

    @property
    def _made_with(self) -> dict[str, Any]:
        return {
            "settings": self.run.plan["settings"],
            "starts": self.run.starts,
            "ends": self.run.ends,
        }

    def told(self) -> str:
        """Verdict, title, table and remarks for a terminal."""
        lines = [f"{number}. {line}" for number, line in enumerate(self.verdict, 1)]
        above = [*map(_filled, [*lines, self.title]), ""]
        under = map(_filled, filter(None, [NOTE, self.noise, *self.remarks]))
        return "\n".join([*above, *speeds(self), "", *self.below, *under])

    def markdown(self, plots: Sequence[Path]) -> str:
        """The report as a page that stands alone."""
        differing = [
            f"- {row.arm}, {row.kind}, {row.rtt_ms:g} ms: {one.prompt} differs at token {one.at} "
            f"({one.ours} instead of {one.theirs})"
            for row in self.rows
            for one in row.differences
        ]
        parts = [
            f"# {self.title}",
            f"```\n{self.told()}\n```",
            *(f"## {head}\n\n" + "\n".join(lines) for head, lines in self.sections.items()),
            "## Waits, traffic, and share of forward passes that accepted depth N",
            "```\n" + "\n".join(waits(self.rows)) + "\n```",
            "## Texts that differ from target-only's",
            "\n".join(differing) or "None.",
            *(f"![{path.stem}]({path.name})" for path in plots),
            f"## Made with\n\n```json\n{json.dumps(self._made_with, indent=1)}\n```\n",
        ]
        return "\n\n".join(parts)

    def write(self, directory: Path) -> list[Path]:
        """Write report.json, report.csv, report.md and plots. Returns their paths.

        Without matplotlib there are no plots, and one line on stderr says so.
        """
        directory.mkdir(parents=True, exist_ok=True)
        paths = [directory / f"report.{kind}" for kind in ("json", "csv", "md")]
        record = self.record()
        write_whole(paths[0], f"{json.dumps(record, indent=1)}\n")
        write_csv(
            paths[1], [one | {"differences": len(one["differences"])} for one in record["rows"]]
        )
        try:
            plots = draw(directory, self.title, self.rows)
        except MissingExtra as error:
            plots = []
            say(f"no plots: {error}")
        write_whole(paths[2], self.markdown(plots))
        return [*paths, *plots]


def speeds(report: Report) -> list[str]:
    """The table of speeds: over each link labelled arms come first. Columns that say nothing are
    left out.
    """
    trips = list(dict.fromkeys(row.rtt_ms for row in report.rows))
    rows = sorted(
        report.rows, key=lambda row: (trips.index(row.rtt_ms), row.arm not in report.labels)
    )
    several = {name: len({getattr(row, name) for row in rows}) > 1 for name in ("rtt_ms", "kind")}
    prices = {
        head: read
        for head, read in _PRICES.items()
        if any(read(row).value is not None for row in rows)
    }
    cells = []
    for row in rows:
        each = row.time_per_output_token
        label = report.labels.get(row.arm, "")
        cells.append(
            {
                **({"RTT": f"{row.rtt_ms:g}"} if several["rtt_ms"] else {}),
                **({"kind": row.kind} if several["kind"] else {}),
                "arm": row.arm + label + " *" * row.pareto,
                "tokens/s": f"{row.tokens_per_second.median:.1f}",
                "x target-only": "-" if row.speed_up is None else str(row.speed_up) + _doubt(row),
                "TPOT": "-" if each is None else f"{each.p50 * 1e3:.2f}",
                "length": f"{row.acceptance_length:.2f}",
                "same": f"{row.equal}/{row.compared}" if row.compared else "-",
                **(
                    {"right": f"{row.right}/{row.scored}"}
                    if any(other.scored for other in rows)
                    else {}
                ),
                **{head: _short(read(row)) for head, read in prices.items()},
            }
        )
    return _table(cells)


def waits(rows: Sequence[Row]) -> list[str]:
    """The table of waits in milliseconds, traffic by the token, and acceptance by depth."""
    cells = []
    for row in rows:
        first = row.time_to_first_token
        shares = [*(f"{share:.3f}" for share in row.acceptance_by_depth), *["-"] * DEPTHS]
        cells.append(
            {
                "RTT": f"{row.rtt_ms:g}",
                "kind": row.kind,
                "arm": row.arm,
                "prompts": f"{row.prompts}",
                "texts": f"{row.texts}",
                "first": "-" if first is None else f"{first.p50 * 1e3:.0f}",
                "gap p50": f"{row.gaps.p50 * 1e3:.0f}",
                "p99": f"{row.gaps.p99 * 1e3:.0f}",
                "max": f"{row.gaps.largest * 1e3:.0f}",
                "bytes up": f"{row.counts['bytes_up'] / max(row.tokens, 1):.0f}",
                "down": f"{row.counts['bytes_down'] / max(row.tokens, 1):.0f}",
                **{str(depth + 1): shares[depth] for depth in range(DEPTHS)},
            }
        )
    return _table(cells)


def _table(cells: Sequence[Mapping[str, str]]) -> list[str]:
    return aligned(list(cells[0]), [list(cell.values()) for cell in cells]) if cells else []


def _doubt(row: Row) -> str:
    """A mark where a speed-up is not told from target-only over itself."""
    return "" if row.faster or row.slower else " ?"


def _filled(line: str) -> str:
    return fill(line, WIDTH)


def _short(known: Figure) -> str:
    """A figure, marked where it is an estimate or a lower bound; never 0 for what is not known."""
    if known.value is None:
        return "-"
    bound = ">=" if known.lower_bound else "~" * (known.quality is Quality.ESTIMATED)
    return f"{bound}{known.value:.2f}"
