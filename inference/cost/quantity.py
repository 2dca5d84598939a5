"""Figures: numbers that are measured, estimated, or unavailable with a reason. An unknown value is
never reported as 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum


class Quality(IntEnum):
    """Origin of a figure; a greater value is worse. A sum has the quality of its worst summand."""

    MEASURED = 0
    ESTIMATED = 1
    UNAVAILABLE = 2


@dataclass(frozen=True)
class Figure:
    """A value with its quality and source. The code that uses it defines the unit.

    An unavailable figure has no value; its source is the reason. Raises ValueError for a
    non-finite value.
    """

    value: float | None
    quality: Quality
    source: str
    lower_bound: bool = False  # whether it is a sum that lacks unknown summands

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
        """Return this figure with its value multiplied, to convert units or take a share."""
        return self if self.value is None else replace(self, value=self.value * factor)

    def record(self) -> dict[str, object]:
        """Return plain data for JSON."""
        return {**vars(self), "quality": self.quality.name.lower()}


def total(figures: Sequence[Figure]) -> Figure:
    """Return the sum. It is unavailable, with the reasons, if any figure is unavailable."""
    missing = [figure.source for figure in figures if figure.value is None]
    if missing or not figures:
        return Figure.unavailable(_joined(missing) or "there is nothing to add up")
    return Figure(
        sum(figure.value or 0.0 for figure in figures),
        max(figure.quality for figure in figures),
        _joined([figure.source for figure in figures]),
        any(figure.lower_bound for figure in figures),
    )


def at_least(figures: Sequence[Figure]) -> Figure:
    """Return the sum of the available figures. If any are missing, it is an estimated lower bound
    whose source names them.
    """
    available = [figure for figure in figures if figure.value is not None]
    missing = [figure.source for figure in figures if figure.value is None]
    if not available or not missing:
        return total(figures)
    have = total(available)
    return Figure(
        have.value,
        Quality.ESTIMATED,
        f"at least, from {have.source}; not counted: {_joined(missing)}",
        lower_bound=True,
    )


def _joined(sources: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(sources))
