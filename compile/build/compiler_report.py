"""The report of neuronx-cc on a graph that it compiled, read from its log.

The format is not documented. It is read as compiler 2.22 wrote it in published logs: what is not
found is None, never an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from inference.command import say
from inference.errors import BadArtifact

T = TypeVar("T")

_ROW = re.compile(r"^│ ([^│]+?) *│ ([^│]+?) *│$", re.MULTILINE)
_SIZE = re.compile(r"([\d.]+) ?([KMGT]?)B")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_ERRORS = (r"\[NCC_\w+\].*", r"ERROR.*", r".*[Ee]rror:.*", r".*Too many instructions.*")
"""The lines that say most about why a compiler failed, the best first."""
_REASON = re.compile(r"NCC_\w+|Too many instructions")
_LONGEST = 300  # characters of an error


@dataclass(frozen=True)
class CompilerReport:
    """The compiler's figures of one graph; None where it stated none."""

    instructions: int | None = None
    code: int | None = None  # bytes of code
    memory: int | None = None  # bytes of the device in all, the tensors included
    moved: float | None = None  # bytes to and from the device's memory


def read_report(log: Path) -> CompilerReport:
    """The report of a graph."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    sizes = _table(text, "DRAM Memory Usage", "Size")
    traffic = re.findall(r"Traffic has found (\d+)", text)
    counts = _table(text, "Opcode", "Count").values()
    return CompilerReport(
        sum(int(count) for count in counts if count.isdigit()) or None,
        _bytes(sizes.get("Model Code")),
        _bytes(sizes.get("Total:")),
        float(traffic[-1]) if traffic else None,
    )


class CompilerDied(BadArtifact):
    """A compiler that ended and gave no reason: it was killed, or crashed."""


def gave_reason(text: str) -> bool:
    """Whether a failed compiler's output names a reason, for which it would fail again."""
    return _REASON.search(text) is not None


def once_more(compile_graph: Callable[[], T]) -> T:
    """Compile a graph. Where the compiler dies without a reason, try it a second time."""
    try:
        return compile_graph()
    except CompilerDied as died:
        say(f"{died}. It gave no reason: it is tried once more")
        return compile_graph()


def first_error(text: str) -> str:
    """The line of a failed compiler's output that says most about why."""
    for pattern in _ERRORS:
        if found := re.search(pattern, text):
            return found[0].strip()[:_LONGEST]
    said = text.split("\n")
    return next((line.strip()[:_LONGEST] for line in reversed(said) if line.strip()), "no output")


def _table(text: str, *heads: str) -> Mapping[str, str]:
    """The last table of two columns with these heads."""
    row = "│".join(rf" {re.escape(head)} +" for head in heads)
    tables = [match.end() for match in re.finditer(rf"^│{row}│$", text, re.MULTILINE)]
    return dict(_ROW.findall(text[tables[-1] : text.find("└", tables[-1])])) if tables else {}


def _bytes(size: str | None) -> int | None:
    found = None if size is None else _SIZE.fullmatch(size)
    return None if found is None else round(float(found[1]) * _UNITS[found[2]])
