"""How far a proposer's claimed chances can be trusted: what was taken of what it claimed.

A claim is the client's word. Forwards are shared out by it, so it is set right by the record of the
same key and the same kind of proposer, level by level. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

CAUTION = 0.8
"""What a claim of an unknown proposer is worth: this part of it."""

WORTH = 8.0
"""Claimed takes that the caution counts as before there is a record."""

FADING = 0.995
"""What a claim counts after the next one of its level."""

MOST_TRUST = 1.25
"""A modest proposer's claims are raised by this factor at most."""

HIGHEST = 0.999
"""No edge is certain: the target has not been asked yet."""

_LEVELS = (1, 2, 4, 8)
"""Depths from which a class of levels begins."""


class Claims(NamedTuple):
    """What a proposer claimed of the children of a node that the target came to.

    depth: of the children.  named: how many.  claimed: the sum of their chances.
    taken: the target took one of them.
    """

    proposer: int
    depth: int
    named: int
    claimed: float
    taken: bool


class _Record:
    """Of one class: what was claimed and taken lately, and the factor that follows from it."""

    __slots__ = ("claimed", "factor", "taken")

    def __init__(self) -> None:
        self.claimed = self.taken = 0.0
        self.factor = CAUTION

    def observe(self, named: int, claimed: float, taken: bool) -> None:
        fading = FADING**named
        self.claimed = fading * self.claimed + claimed
        self.taken = fading * self.taken + taken
        factor = (CAUTION * WORTH + self.taken) / (WORTH + self.claimed)
        self.factor = min(factor, MOST_TRUST)


class Calibration:
    """The record of one key. Classes are kinds of proposers by level: deep claims err more."""

    def __init__(self) -> None:
        self._records: dict[int, list[_Record]] = {}  # of a kind, by depth

    @property
    def factors(self) -> dict[tuple[int, int], float]:
        """By kind of proposer and least depth of the class."""
        return {
            (kind, depth): records[depth].factor
            for kind, records in self._records.items()
            for depth in _LEVELS
            if records[depth].claimed
        }

    def trusted(self, proposer: int, depth: int, claimed: float) -> float:
        """The chance of an edge `depth` levels below the root, as far as its claim is trusted."""
        chance = claimed * self.factor(proposer, depth)
        return chance if chance < HIGHEST else HIGHEST

    def observe(self, claims: Claims) -> None:
        """The target came to the parent of these edges, and took one of them or did not."""
        records = self._records.get(claims.proposer)
        if records is None:
            records = self._records[claims.proposer] = _records()
        depth = claims.depth if claims.depth < _LEVELS[-1] else _LEVELS[-1]
        records[depth].observe(claims.named, claims.claimed, claims.taken)

    def factor(self, proposer: int, depth: int) -> float:
        """What a claim of this kind is multiplied by."""
        records = self._records.get(proposer)
        if records is None:
            return CAUTION
        return records[depth if depth < _LEVELS[-1] else _LEVELS[-1]].factor


def _records() -> list[_Record]:
    """By depth up to the last class's; depths of one class share theirs."""
    by_class = {level: _Record() for level in _LEVELS}
    return [
        by_class[max(level for level in _LEVELS if level <= max(depth, 1))]
        for depth in range(_LEVELS[-1] + 1)
    ]
