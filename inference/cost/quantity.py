"""Quantities of cost: a number that is measured, estimated, or unavailable with the reason.
Unknown is never 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum


class Quality(IntEnum):
    """Origin of a figure. A greater one is worse, and a sum is as good as its worst part."""

    MEASURED = 0
    ESTIMATED = 1
    UNAVAILABLE = 2


@dataclass(frozen=True)
class Figure:
    """A value, in the unit of the field that holds it, with its quality and source.

    An unavailable figure has the value None, and the reason as its source. Raises ValueError for a
    value that is not finite.
    """

    value: float | None
    quality: Quality
    source: str
    lower_bound: bool = False  # unknown parts are not counted

    def __post_init__(self) -> None:
        if (self.value is None) != (self.quality is Quality.UNAVAILABLE):
            raise ValueError(
                f"a figure has a value unless it is unavailable: {self.value} is "
                f"{self.quality.name.lower()}"
            )
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"a figure is finite: got {self.value} from {self.source}")

    @classmethod
    def measured(cls, value: float, source: str) -> Figure:
        return cls(value, Quality.MEASURED, source)

    @classmethod
    def estimated(cls, value: float, source: str) -> Figure:
        return cls(value, Quality.ESTIMATED, source)

    @classmethod
    def unavailable(cls, reason: str) -> Figure:
        return cls(None, Quality.UNAVAILABLE, reason)

    def times(self, factor: float) -> Figure:
        """Return this figure in another unit, or a share of it."""
        return self if self.value is None else replace(self, value=self.value * factor)

    def record(self) -> dict[str, object]:
        """Return plain data for JSON."""
        return {**vars(self), "quality": self.quality.name.lower()}


def total(parts: Sequence[Figure]) -> Figure:
    """Return the sum; unavailable, with the reasons, as soon as one part is."""
    missing = [part.source for part in parts if part.value is None]
    if missing or not parts:
        return Figure.unavailable(_joined(missing) or "there is nothing to add up")
    return Figure(
        sum(part.value or 0.0 for part in parts),
        max(part.quality for part in parts),
        _joined([part.source for part in parts]),
        any(part.lower_bound for part in parts),
    )


def at_least(parts: Sequence[Figure]) -> Figure:
    """Return the sum of the known parts. Where parts are missing it is an estimate that names
    them.
    """
    known = [part for part in parts if part.value is not None]
    missing = [part.source for part in parts if part.value is None]
    if not known or not missing:
        return total(parts)
    have = total(known)
    return Figure(
        have.value,
        Quality.ESTIMATED,
        f"at least, from {have.source}; not counted: {_joined(missing)}",
        lower_bound=True,
    )


def _joined(sources: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(sources))
