"""Time and traffic that tokens took, and the prices of their units. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Usage(NamedTuple):
    """Time and traffic of some tokens."""

    wall: float = 0.0  # seconds by the clock that the target was held
    drafting: float = 0.0  # seconds of drafting on this machine
    bytes_up: float = 0.0
    bytes_down: float = 0.0

    def plus(self, other: Usage) -> Usage:
        return Usage(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def times(self, factor: float) -> Usage:
        return Usage(*(part * factor for part in self))


class UnitPrices(NamedTuple):
    """Price of a unit of each part of a Usage, in the unit of an objective."""

    wall: float  # for a second
    drafting: float = 0.0  # for a second
    byte_up: float = 0.0
    byte_down: float = 0.0

    def of(self, usage: Usage) -> float:
        """Return the price of a usage."""
        return sum(price * amount for price, amount in zip(self, usage, strict=True))

    def plus(self, other: UnitPrices) -> UnitPrices:
        return UnitPrices(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def times(self, factor: float) -> UnitPrices:
        return UnitPrices(*(price * factor for price in self))


SPEED = UnitPrices(wall=1.0)
"""The objective of whoever wants speed alone: the price is the seconds themselves."""
