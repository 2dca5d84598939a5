"""The report of a run: verdict and table on a terminal of 100 columns, and Markdown, JSON and plots
in a directory. A difference is claimed only beyond its confidence interval and beyond the noise of
target-only over itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill
from typing import Any

from inference.command import say
from inference.cost.billing import PER_MILLION, Figure, Quality
from inference.errors import MissingExtra
from inference.files.writing import write_whole
from outrider.measure.figures import COSTS, MIN_TEXTS, Percentiles, Row, totals
from outrider.measure.journal import Journal
from outrider.measure.plots import draw
from outrider.measure.run import AGAIN, BASELINE, HYBRID, command
from outrider.terminal.summary import aligned

WIDTH = 100
NOTE = (
    "x target-only: speed-up, geometric mean over prompts [95 %]; TPOT: p50 ms; length: tokens a "
    "forward pass; same: texts equal to target-only's; ~ estimate, >= lower bound."
)


def _p50(seconds: Percentiles | None, form: str) -> str:
    return "-" if seconds is None else format(seconds.p50 * 1e3, form)


def _cost(figure: Figure) -> str:
    """Format a figure, marked ~ if estimated, >= if a lower bound; - (never 0) if unknown."""
    if figure.value is None:
        return "-"
    bound = ">=" if figure.lower_bound else "~" * (figure.quality is Quality.ESTIMATED)
    return f"{bound}{figure.value:.2f}"


def _speed_up(row: Row) -> str:
    """Format the speed-up, with a question mark if it is not significant: within the noise, or
    from fewer than MIN_TEXTS outputs.
    """
    doubt = "" if row.faster or row.slower else " ?"
    return "-" if row.speed_up is None else f"{row.speed_up}{doubt}"


def _share_at(depth: int) -> Callable[[Row], str]:
    def share(row: Row) -> str:
        shares = row.acceptance_by_depth
        return f"{shares[depth - 1]:.3f}" if depth <= len(shares) else "-"

    return share


Columns = Mapping[str, Callable[[Row], str]]
"""Column headings, and functions that format a row's cell."""

SPEEDS: Columns = {
    "RTT": lambda row: f"{row.rtt_ms:g}",
    "kind": lambda row: row.kind,
    "arm": lambda row: row.arm + " (default)" * (row.arm == HYBRID),
    "tokens/s": lambda row: f"{row.tokens_per_second:.1f}",
    "x target-only": _speed_up,
    "TPOT": lambda row: _p50(row.time_per_output_token, ".2f"),
    "length": lambda row: f"{row.acceptance_length:.2f}",
    "same": lambda row: f"{row.equal}/{row.compared}" if row.compared else "-",
    "$/1M": lambda row: _cost(row.costs["usd_per_million"]),
    "J/token": lambda row: _cost(row.costs["joules_per_million"].times(1 / PER_MILLION)),
}
WAITS: Columns = {
    "prompts": lambda row: f"{row.prompts}",
    "texts": lambda row: f"{row.texts}",
    "first": lambda row: _p50(row.time_to_first_token, ".0f"),
    "gap p50": lambda row: f"{row.gaps.p50 * 1e3:.0f}",
    "p99": lambda row: f"{row.gaps.p99 * 1e3:.0f}",
    "max": lambda row: f"{row.gaps.largest * 1e3:.0f}",
    "bytes up": lambda row: f"{row.counts['bytes_up'] / max(row.tokens, 1):.0f}",
    "down": lambda row: f"{row.counts['bytes_down'] / max(row.tokens, 1):.0f}",
    **{str(depth): _share_at(depth) for depth in range(1, 7)},
}
"""Further columns for the Markdown page: waiting times in ms, bytes per token, and the share of
forward passes that accepted a token at each depth.
"""


def table(rows: Sequence[Row], columns: Columns) -> list[str]:
    """Format a table as lines, with the default of `outrider run` as its first row. Leaves out
    columns without information.
    """
    places = list(dict.fromkeys((row.rtt_ms, row.kind) for row in rows))
    rows = sorted(rows, key=lambda row: (places.index((row.rtt_ms, row.kind)), row.arm != HYBRID))
    cells = {head: [cell(row) for row in rows] for head, cell in columns.items()}
    shown = {
        head: column
        for head, column in cells.items()
        if len({*column}) > 1 or (head not in ("RTT", "kind") and column[0] != "-")
    }
    return aligned([*shown], [*zip(*shown.values(), strict=True)])


def leader(rows: Sequence[Row]) -> Row | None:
    """Return the fastest row over one link: the fastest arm that is faster than target-only, or
    target-only if all other arms are slower; None if neither is certain.
    """
    alternatives = _alternatives(rows)
    if faster := [row for row in alternatives if row.faster]:
        return max(faster, key=_speed_up_of)
    alone = next((row for row in rows if row.arm == BASELINE), None)
    return alone if all(row.slower for row in alternatives) else None


def verdict(rows: Sequence[Row]) -> str:
    """Format the fastest arm over each link, with its command."""
    together = totals(rows)
    trips = dict.fromkeys(row.rtt_ms for row in together)
    links = [[row for row in together if row.rtt_ms == trip] for trip in trips]
    return f"{'; '.join(map(_leader_words, links))}."


def _leader_words(rows: Sequence[Row]) -> str:
    fastest, link = leader(rows), f"{rows[0].rtt_ms:g} ms"
    if fastest is None:
        best = max(_alternatives(rows), key=_speed_up_of)
        words = f"no significant difference from target-only (best: {best.arm} {best.speed_up})"
        return f"{link}: {words}"
    times = "" if fastest.arm == BASELINE else f", {fastest.speed_up} x target-only"
    words = f"{fastest.arm} is fastest{times} ({fastest.tokens_per_second:.1f} tokens/s)"
    return f"{link}: {words}{command(fastest.arm)}"


def _alternatives(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.arm not in (BASELINE, AGAIN)]


def _speed_up_of(row: Row) -> float:
    return 0.0 if row.speed_up is None else row.speed_up.value


@dataclass(frozen=True)
class Report:
    """The results of a run.

    remarks: sentences that help to judge the figures
    below: lines to print below the table
    data: additional fields of the JSON file
    """

    verdict: Sequence[str]
    rows: Sequence[Row]
    run: Journal
    remarks: Sequence[str] = ()
    below: Sequence[str] = ()
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """A title that names the models and the device."""
        start = self.run.starts[0]
        draft = start["draft"] or "no draft model"
        return f"{draft} for {start['target']} on {start['models']['device']}"

    @property
    def equal(self) -> bool:
        """Whether all outputs equal target-only's."""
        return all(row.equal == row.compared for row in self.rows)

    @property
    def notes(self) -> list[str]:
        """Sentences below the table: machine and load, skipped arms, remarks, noise, and why costs
        are unknown.
        """
        return [
            *_operating_point(self.run),
            *self.remarks,
            *_noise(self.rows),
            *_unknown_costs(self.rows),
        ]

    def record(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        return {
            "title": self.title,
            "verdict": list(self.verdict),
            "equal": self.equal,
            "remarks": self.notes,
            "rows": [row.record() for row in self.rows],
            **self.data,
            "settings": self.run.plan["settings"],
            "starts": self.run.starts,
            "ends": self.run.ends,
        }

    def text(self, columns: Columns = SPEEDS) -> str:
        """Format verdict, title, table and notes for a terminal."""
        above = [*(f"{number}. {line}" for number, line in enumerate(self.verdict, 1)), self.title]
        lines = [*map(_filled, above), "", *table(self.rows, columns), "", *self.below]
        return "\n".join([*lines, *map(_filled, [NOTE, *self.notes])])

    def markdown(self, plots: Sequence[Path]) -> str:
        """Format the report as a Markdown page."""
        differing = [
            f"- {row.arm}, {row.kind}, {row.rtt_ms:g} ms: {text.prompt} differs at token {text.at} "
            f"({text.ours} instead of {text.theirs})"
            for row in self.rows
            for text in row.differences
        ]
        sections = [
            f"# {self.title}",
            f"```\n{self.text({**SPEEDS, **WAITS})}\n```",
            "## Texts that differ from target-only's",
            "\n".join(differing) or "None.",
            *(f"![{path.stem}]({path.name})" for path in plots),
            "All figures, settings and machines: report.json\n",
        ]
        return "\n\n".join(sections)

    def publish(self, directory: Path | None) -> None:
        """Print the report, and write report.json, report.md and plots to the directory, if any.

        Without matplotlib, plots are skipped with a message on stderr.
        """
        print(self.text())
        if directory is None:
            return
        directory.mkdir(parents=True, exist_ok=True)
        try:
            plots = draw(directory, self.title, self.rows)
        except MissingExtra as error:
            plots = []
            say(f"no plots: {error}")
        write_whole(directory / "report.json", f"{json.dumps(self.record(), indent=1)}\n")
        write_whole(directory / "report.md", self.markdown(plots))
        names = ["report.json", "report.md", *(path.name for path in plots)]
        say(f"wrote {', '.join(names)} to {directory}")


def _operating_point(run: Journal) -> Iterator[str]:
    """Yield lines on machine, load, software, round trips and skipped arms."""
    where = run.starts[0]["environment"]
    loads = [start["environment"]["load"] for start in run.starts]
    loads += [end["load"] for end in run.ends]
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    commits = dict.fromkeys(start["environment"]["commit"] for start in run.starts)
    yield (
        f"{where['processor']}, {where['cpus']} CPUs; load at each start and at the end "
        f"{', '.join(f'{load[0]:.1f}' for load in loads if load)}"
    )
    yield f"{versions}; commit {', then '.join(commits)}"
    alone = [text for key, text in run.texts.items() if key.arm == BASELINE]
    forwards = sum(text["forwards"] for text in alone)
    seconds = sum(text["target_seconds"] for text in alone) / max(forwards, 1)
    for trip in (start["round_trip"] for start in run.starts):
        passes = f", {trip / seconds:.2f} forward passes of the target" if seconds else ""
        yield f"round trip {trip * 1e3:.3g} ms{passes}"
    if run.starts[0]["shared"]:
        yield (
            "Draft and target share this machine: forward passes of synchronous rounds, acceptance "
            "and bytes carry over to others; times do not."
        )
    left_out = [line for start in run.starts for line in start["left_out"].items()]
    for name, why in dict(left_out).items():
        yield f"Left out: {name}: {why}"


def _noise(rows: Sequence[Row]) -> Iterator[str]:
    if noise := [row.noise for row in rows if row.arm == AGAIN and row.noise]:
        low, high = min(span.low for span in noise), max(span.high for span in noise)
        yield (
            f"Noise: target-only over itself lies within {low:.2f} and {high:.2f} (95 %). A "
            "speed-up within that of its own link and kind, or of fewer than "
            f"{MIN_TEXTS} texts, is marked ? and claims nothing."
        )


def _unknown_costs(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the reasons why costs are unknown."""
    for name in COSTS:
        sources = [row.costs[name].source for row in rows if row.costs[name].value is None]
        if reasons := dict.fromkeys(reason for source in sources for reason in source.split("; ")):
            yield f"{name} is unavailable: {'; '.join(reasons)}."


def _filled(line: str) -> str:
    return fill(line, WIDTH)
