"""Seconds and bytes that tokens took, and their prices. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Effort(NamedTuple):
    """What some tokens took."""

    wall: float = 0.0  # seconds by the clock that the target was held
    drafting: float = 0.0  # seconds of drafting on this machine
    bytes_up: float = 0.0
    bytes_down: float = 0.0

    def plus(self, other: Effort) -> Effort:
        return Effort(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def times(self, factor: float) -> Effort:
        return Effort(*(part * factor for part in self))


class Tariff(NamedTuple):
    """Price of a unit of each part of an Effort, in the unit of an objective."""

    wall: float  # for a second
    drafting: float = 0.0  # for a second
    byte_up: float = 0.0
    byte_down: float = 0.0

    def of(self, effort: Effort) -> float:
        return sum(price * amount for price, amount in zip(self, effort, strict=True))

    def plus(self, other: Tariff) -> Tariff:
        return Tariff(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def times(self, factor: float) -> Tariff:
        return Tariff(*(price * factor for price in self))


SPEED = Tariff(wall=1.0)
"""The objective of whoever wants speed alone: the price is the seconds themselves."""
