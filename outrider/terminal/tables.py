"""Formats tables of reports: aligned columns for people, and CSV for programs."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def aligned(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format a table as lines, header first, with every column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True))
        for line in (heads, *rows)
    ]


def write_csv(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write one line per record. A nested mapping becomes one column per entry."""
    flat = [_columns(record) for record in records]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(head for line in flat for head in line)))
        writer.writeheader()
        writer.writerows(flat)


def _columns(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            columns |= _columns(value, f"{prefix}{name}.")
        else:
            columns[prefix + name] = value
    return columns
