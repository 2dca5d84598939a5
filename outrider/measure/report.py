"""The report of a comparison: its verdict and its table, on a terminal of 100 columns and in --out
DIR: report.md, results.json, results.csv and plots, with the environment and the resolved options.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from textwrap import fill
from typing import Any

from inference.command import say
from inference.cost.billing import PER_MILLION
from inference.cost.quantity import Figure, Quality
from inference.errors import MissingExtra
from inference.files import write_whole
from outrider.measure.arms import BASELINE, FUSED, HYBRID, Setting
from outrider.measure.comparison import Comparison
from outrider.measure.plots import draw
from outrider.measure.rows import ResultRow
from outrider.measure.statistics import Interval
from outrider.models.machine import instructions, processor
from outrider.terminal.tables import aligned, write_csv

UNKNOWN = "unavailable"
WIDTH = 100
NOTE = (
    "RTT: added ms; TPOT: p50 ms; length: tokens a forward; same: texts as target-only makes; "
    "~ estimate, >= lower bound; default: what `outrider run` does; * Pareto: nothing at this RTT "
    "is as good in all and better."
)
_PRICES: dict[str, Callable[[ResultRow], Figure]] = {
    "$/1M": lambda row: row.usd_per_million.median,
    "J/token": lambda row: row.joules_per_million.median.times(1 / PER_MILLION),
}
_LIBRARIES = ("outrider", "torch", "numpy", "grpcio", "transformers")


def write_results(directory: Path, comparison: Comparison) -> list[Path]:
    """Write the files and return their paths. Without matplotlib there are no plots, and one line
    on stderr says so.
    """
    directory.mkdir(parents=True, exist_ok=True)
    made_with = {"environment": environment(), "options": comparison.options.values()}
    records = [row.record() for row in comparison.rows]
    results = {
        **made_with,
        "title": comparison.title,
        "verdict": verdict(comparison),
        "remarks": comparison.remarks,
        "accounting": comparison.account,
        "rows": records,
        "texts": comparison.texts,
    }
    paths = [directory / name for name in ("results.json", "results.csv", "report.md")]
    write_whole(paths[0], f"{_json(results)}\n")
    write_csv(paths[1], [one | {"differences": len(one["differences"])} for one in records])
    try:
        plots = draw(directory, comparison)
    except MissingExtra as error:
        plots = []
        say(f"no plots: {error}")
    parts = [
        f"# Architectures compared\n\n```\n{told(comparison)}\n```",
        "## Texts that differ",
        *(differences(comparison.rows) or ["None."]),
        *(f"![{path.stem}]({path.name})" for path in plots),
        f"## Made with\n\n```json\n{_json(made_with)}\n```\n",
    ]
    write_whole(paths[2], "\n\n".join(parts))
    return [*paths, *plots]


def _json(values: object) -> str:
    return json.dumps(values, indent=1, default=lambda policy: Setting(policy).label)


def environment() -> dict[str, Any]:
    """This machine and what ran on it."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "processor": processor(),
        "instructions": instructions(),
        "cpus": os.cpu_count(),
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "commit": commit(),
    }
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def commit() -> str:
    """The commit of this checkout, marked where files were changed; unknown outside of one."""
    git = shutil.which("git")
    if git is None:
        return "unknown"
    asked = [git, "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603
    return said.stdout.strip() or "unknown"


def told(comparison: Comparison) -> str:
    """Verdict, title, table, commands and remarks."""
    lines = [f"{number}. {line}" for number, line in enumerate(verdict(comparison), 1)]
    lines.append(comparison.title)
    table = ["", *aligned(*columns(comparison)), "", *commands(comparison), ""]
    below = [NOTE, comparison.account, *comparison.remarks]
    if comparison.options.out is None:
        below.append("--out DIR: all figures, differing texts and plots.")
    return "\n".join([*map(_filled, lines), *table, *map(_filled, below)])


def columns(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table. Costs that are known of no arm are left out."""
    rows = comparison.rows
    prices = {
        head: read
        for head, read in _PRICES.items()
        if any(read(row).value is not None for row in rows)
    }
    heads = ["RTT", "arm", "tokens/s", "x target-only", "TPOT", "length", "same", *prices]
    return heads, [[*_cells(row), *(_short(read(row)) for read in prices.values())] for row in rows]


def commands(comparison: Comparison) -> list[str]:
    """Each arm with the command that decodes in this way, aligned."""
    arms = {row.arm.name: row.arm.command for row in comparison.rows}
    width = max(map(len, arms))
    head = "Commands, to which the flags that name your models are added:"
    return [head, *(f"{name:<{width}}  {command}" for name, command in arms.items())]


def _cells(row: ResultRow) -> Iterator[str]:
    each = row.time_per_output_token
    yield f"{row.rtt_ms:g}"
    yield row.arm.name + " (default)" * (row.arm.name == HYBRID) + " *" * row.pareto
    yield f"{row.tokens_per_second.median:.1f}"
    yield UNKNOWN if row.ratio is None else _interval(row.ratio)
    yield "-" if each is None else f"{each.p50 * 1e3:.2f}"
    yield f"{row.acceptance_length:.2f}"
    yield UNKNOWN if row.identical_texts is None else f"{row.identical_texts}/{row.texts}"


def _filled(line: str) -> str:
    return fill(line, WIDTH)


def differences(rows: Sequence[ResultRow]) -> list[str]:
    """The first difference of every text that is not the target-only one."""
    return [
        f"- {row.arm.name} at {row.rtt_ms:g} ms: prompt {one.prompt} parts at token {one.at} "
        f"({one.ours} for {one.theirs})"
        for row in rows
        for one in row.differences
    ]


def _interval(value: Interval) -> str:
    return f"{value.median:.2f} [{value.low:.2f}, {value.high:.2f}]"


def _short(known: Figure) -> str:
    """A figure, marked where it is an estimate or a lower bound; never 0 for what is not known."""
    if known.value is None:
        return "-"
    bound = ">=" if known.lower_bound else "~" * (known.quality is Quality.ESTIMATED)
    return f"{bound}{known.value:.2f}"


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
            ways.setdefault(f"`{first.arm.command}`", []).append(f"{row.rtt_ms:g} ms")
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
