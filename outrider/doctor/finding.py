"""What `outrider doctor` reports: findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inference.command import printable
from inference.errors import OutriderError


@dataclass(frozen=True)
class Finding:
    """A fact about this machine or the target, with a remedy if it is a fault."""

    subject: str
    text: str
    severity: Literal["fine", "warning", "fault"] = "fine"
    remedy: str = ""


def refused(subject: str, error: OutriderError) -> Finding:
    """Return the finding for an error, whose message includes the remedy."""
    return Finding(subject, printable(str(error)), "fault")
