"""Findings of checks, how they are shown, and the exit code that follows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal

from inference.command import FAILED, printable
from inference.errors import OutriderError

_WIDTH = 12


@dataclass(frozen=True)
class Finding:
    """A fact about this machine or the target, and a remedy where it is a fault."""

    subject: str
    text: str
    severity: Literal["fine", "warning", "fault"] = "fine"
    remedy: str = ""


def fault(subject: str, text: str, remedy: str) -> Finding:
    return Finding(subject, text, "fault", remedy)


def warning(subject: str, text: str, remedy: str) -> Finding:
    return Finding(subject, text, "warning", remedy)


def refused(subject: str, error: OutriderError) -> Finding:
    """The finding of an error, whose message says what is needed."""
    return Finding(subject, printable(str(error)), "fault")


def show(findings: Iterable[Finding], *, as_json: bool) -> int:
    """Print findings as they come. Returns 1 where one of them is a fault, else 0."""
    seen = []
    for finding in findings:
        seen.append(finding)
        if not as_json:
            print(*_lines(finding), sep="\n", flush=True)
    faults = sum(finding.severity == "fault" for finding in seen)
    if as_json:
        print(json.dumps({"faults": faults, "findings": [asdict(one) for one in seen]}, indent=1))
    return FAILED if faults else 0


def _lines(finding: Finding) -> Iterator[str]:
    mark = "" if finding.severity == "fine" else f"{finding.severity.upper()}: "
    yield f"{finding.subject:{_WIDTH}}{mark}{finding.text}"
    if finding.remedy:
        yield f"{'':{_WIDTH}}remedy: {finding.remedy}"
