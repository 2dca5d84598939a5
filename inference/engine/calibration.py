"""How far a proposer's claimed chances can be trusted: what was taken of what it claimed.

A claim is the client's word. Forwards are shared out by it, so it is set right by the record of the
same key and the same kind of proposer, level by level. Pure.
"""

from __future__ import annotations

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


class _Record:
    """Of one class: what was claimed and taken lately, and the factor that follows from it."""

    __slots__ = ("claimed", "factor", "taken")

    def __init__(self) -> None:
        self.claimed = self.taken = 0.0
        self.factor = CAUTION

    def observe(self, claimed: float, taken: bool) -> None:
        self.claimed = FADING * self.claimed + claimed
        self.taken = FADING * self.taken + taken
        factor = (CAUTION * WORTH + self.taken) / (WORTH + self.claimed)
        self.factor = min(factor, MOST_TRUST)


class Calibration:
    """The record of one key. Classes are kinds of proposers by level: deep claims err more."""

    def __init__(self) -> None:
        self._records: dict[tuple[int, int], _Record] = {}

    @property
    def factors(self) -> dict[tuple[int, int], float]:
        """By kind of proposer and least depth of the class."""
        return {kind: record.factor for kind, record in self._records.items()}

    def trusted(self, proposer: int, depth: int, claimed: float) -> float:
        """The chance of an edge `depth` levels below the root, as far as its claim is trusted."""
        return min(claimed * self.factor(proposer, depth), HIGHEST)

    def observe(self, proposer: int, depth: int, claimed: float, taken: bool) -> None:
        """The target came to the edge's parent, and took the edge or did not."""
        kind = proposer, _level(depth)
        record = self._records.get(kind)
        if record is None:
            record = self._records[kind] = _Record()
        record.observe(claimed, taken)

    def factor(self, proposer: int, depth: int) -> float:
        """What a claim of this kind is multiplied by."""
        record = self._records.get((proposer, _level(depth)))
        return CAUTION if record is None else record.factor


_CLASSES = [max(level for level in _LEVELS if level <= max(depth, 1)) for depth in range(9)]


def _level(depth: int) -> int:
    """The class of a depth."""
    return _CLASSES[depth] if depth < len(_CLASSES) else _LEVELS[-1]
