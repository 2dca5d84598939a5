"""Writes --out DIR: report.md, results.json, results.csv and plots, with the environment and the
resolved options.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from inference.drafters.round_proposer import BestFirst, Chain
from inference.errors import MissingExtra
from inference.files import write_whole
from inference.flags.group import Group
from outrider.compare.arms import Setting
from outrider.compare.compare_options import CompareOptions
from outrider.compare.measure import Comparison
from outrider.compare.plots import draw
from outrider.compare.report import tables, verdict
from outrider.compare.rows import ResultRow

_LIBRARIES = ("outrider", "torch", "numpy", "grpcio", "transformers")


def write_results(directory: Path, comparison: Comparison) -> list[Path]:
    """Write the files and return their paths. Without matplotlib there are no plots, and one line
    on stderr says so.
    """
    directory.mkdir(parents=True, exist_ok=True)
    made_with = {"environment": environment(), "options": plain(comparison.options)}
    records = [record(row) for row in comparison.rows]
    results = {
        **made_with,
        "title": comparison.title,
        "verdict": verdict(comparison),
        "remarks": comparison.remarks,
        "accounting": comparison.account,
        "rows": records,
        "sweep": [trial.record() for trial in comparison.trials],
        "texts": comparison.texts,
    }
    paths = [directory / name for name in ("results.json", "results.csv", "report.md")]
    write_whole(paths[0], json.dumps(results, indent=1) + "\n")
    _write_csv(paths[1], records)
    try:
        plots = draw(directory, comparison)
    except MissingExtra as error:
        plots = []
        print(f"no plots: {error}", file=sys.stderr)
    pictures = "".join(f"![{path.stem}]({path.name})\n\n" for path in plots)
    made = f"## Made with\n\n```json\n{json.dumps(made_with, indent=1)}\n```\n"
    write_whole(paths[2], f"{markdown(comparison)}\n{pictures}{made}")
    return [*paths, *plots]


def environment() -> dict[str, Any]:
    """This machine and what ran on it."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
    }
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def record(row: ResultRow) -> dict[str, Any]:
    """A row as plain data for JSON."""
    values = {field.name: plain(getattr(row, field.name)) for field in fields(row)[1:]}
    return {**row.arm.record(), **values}


def plain(value: Any) -> Any:
    """Records, named tuples and policies as data for JSON."""
    if hasattr(value, "record"):
        return value.record()
    if isinstance(value, Chain | BestFirst):
        return Setting(value).label
    if isinstance(value, CompareOptions):
        value = vars(value)
    elif isinstance(value, Group):
        value = value.values()
    elif is_dataclass(value):
        value = vars(value)
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def markdown(comparison: Comparison) -> str:
    """The text of report.md."""
    parts = [
        f"# Architectures compared\n\n{comparison.title}",
        "## Verdict",
        "\n".join(f"{number}. {line}" for number, line in enumerate(verdict(comparison), 1)),
        "\n".join(f"- {line}" for line in comparison.remarks),
    ]
    for table in tables(comparison):
        lines = [_line(table.heads), _line(["---"] * len(table.heads)), *map(_line, table.cells)]
        parts += [f"## {table.title}", "\n".join(lines), table.note]
    differing = "\n".join(f"- {line}" for line in differences(comparison.rows)) or "None."
    return "\n\n".join([*parts, "## Texts that differ", differing]) + "\n"


def differences(rows: Sequence[ResultRow]) -> list[str]:
    """The first difference of every text that is not the target-only one, and how near the two
    tokens were.
    """
    lines = []
    for row in rows:
        for one in row.differences:
            known = one.margin.value
            margin = f"unavailable: {one.margin.source}" if known is None else format(known, ".2g")
            lines.append(
                f"{row.arm.name} at {row.rtt_ms:g} ms: prompt {one.prompt} parts at token {one.at} "
                f"({one.ours} for {one.theirs}, margin {margin})"
            )
    return lines


def _write_csv(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """Write a line a row. An object in JSON gets a column for each of its parts."""
    flat = [dict(_columns(record)) for record in records]
    heads = list(dict.fromkeys(head for line in flat for head in line))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=heads)
        writer.writeheader()
        writer.writerows(flat)


def _columns(record: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    columns: list[tuple[str, Any]] = []
    for name, value in record.items():
        if isinstance(value, dict):
            columns += _columns(value, f"{prefix}{name}.")
        elif name == "differences":
            columns.append((f"{prefix}differing_texts", len(value)))
        else:
            numbers = isinstance(value, list)
            shown = " ".join(f"{part:.4f}" for part in value) if numbers else value
            columns.append((f"{prefix}{name}", shown))
    return columns


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
