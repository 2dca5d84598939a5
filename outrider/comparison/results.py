"""--out DIR: report.md, results.json, results.csv and plots, with the environment and the
resolved options beside the figures.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from inference.drafters.tree_policies import BestFirst, Chain
from inference.errors import MissingExtra
from inference.whole_file import write_whole
from outrider.comparison.arms import label
from outrider.comparison.measure import Comparison
from outrider.comparison.options import CompareOptions
from outrider.comparison.plots import draw
from outrider.comparison.tables import markdown

_LIBRARIES = ("outrider", "torch", "numpy", "grpcio", "transformers", "openvino")


def write_results(
    directory: Path, options: CompareOptions, comparison: Comparison, words: Sequence[str]
) -> list[Path]:
    """The files, as far as they can be made: without matplotlib there are no plots, and one line
    on stderr says so.
    """
    directory.mkdir(parents=True, exist_ok=True)
    records = [row.record() for row in comparison.rows]
    results = {
        "environment": environment(),
        "options": plain_options(options),
        "device": comparison.device,
        "architectures": records,
        "sweep": [trial.record() for trial in comparison.trials],
        "costs_of_a_round": [
            {"architecture": name, "setting": setting, **asdict(costs)}
            for (name, setting), costs in comparison.costs.items()
        ],
        "acceptance": {"chain": comparison.acceptance, "tree": comparison.coverage},
        "verdict": list(words),
        "remarks": comparison.remarks,
        "accounting": comparison.account,
        "texts": comparison.texts,
    }
    paths = [directory / name for name in ("results.json", "results.csv", "report.md")]
    write_whole(paths[0], json.dumps(results, indent=1) + "\n")
    _write_csv(paths[1], records)
    try:
        plots = draw(directory, options, comparison)
    except MissingExtra as error:
        plots = []
        print(f"no plots: {error}", file=sys.stderr)
    pictures = "".join(f"![{path.stem}]({path.name})\n\n" for path in plots)
    made_with = json.dumps(
        {"environment": results["environment"], "options": results["options"]}, indent=1
    )
    write_whole(
        paths[2],
        f"{markdown(comparison, words)}\n{pictures}## Made with\n\n```json\n{made_with}\n```\n",
    )
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


def plain_options(options: CompareOptions) -> dict[str, Any]:
    """As plain data for JSON, defaults included."""
    return {name: _plain(value) for name, value in vars(options).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return label(value) if isinstance(value, Chain | BestFirst) else value


def _write_csv(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """A line a row; what is an object in JSON has a column for each of its parts."""
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
            columns.append(
                (
                    f"{prefix}{name}",
                    " ".join(f"{part:.4f}" for part in value) if isinstance(value, list) else value,
                )
            )
    return columns
