"""Calibration of proposers' claimed chances by how many candidates the target accepted.

Clients claim the chances of their candidates, and these divide forward passes among sessions. So a
claim is corrected by the record of the same tenant, kind of proposer and tree level. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from inference.candidates import Claimed
from inference.engine.tuning import TUNING
from inference.proposer import NOBODY

HIGHEST = 0.999
"""The greatest calibrated chance: no edge is certain before the target has verified it."""

_LEVELS = (1, 2, 4, 8)
"""Minimum depth of each class of tree levels."""


def _class_of(depth: int) -> int:
    """Index in _LEVELS of the class of a depth, which is 1 below the root."""
    return (depth if depth < _LEVELS[-1] else _LEVELS[-1]).bit_length() - 1


class Claims(NamedTuple):
    """A proposer's claims for the children of a node that the target's walk reached."""

    proposer: int  # kind of the proposer
    depth: int  # depth of the children; 1 below the root
    named: int  # number of children that it proposed
    claimed: float  # sum of their claimed chances
    taken: bool  # the target accepted one of them


class _ClassRecord:
    """Recent claims and acceptances of one class, and the resulting factor."""

    __slots__ = ("claimed", "factor", "taken")

    def __init__(self) -> None:
        self.claimed = self.taken = 0.0
        self.factor = TUNING.caution

    def observe(self, named: int, claimed: float, taken: bool) -> None:
        fading = TUNING.claim_fading**named
        self.claimed = fading * self.claimed + claimed
        self.taken = fading * self.taken + taken
        weight = TUNING.caution_weight
        factor = (TUNING.caution * weight + self.taken) / (weight + self.claimed)
        self.factor = min(factor, TUNING.most_trust)


class OwnRecord:
    """Outcome of one session's candidates. Its draft may be worse than its tenant's others.

    factor: part of the expected candidates that the target accepted, up to 1.
    """

    def __init__(self) -> None:
        self._expected = self._taken = 0.0
        self.factor = 1.0

    def observe(self, expected: float, taken: int) -> None:
        """Record the expected and the actual number of accepted candidates of a forward pass."""
        self._expected = TUNING.own_fading * self._expected + expected
        self._taken = TUNING.own_fading * self._taken + taken
        weight = TUNING.own_weight
        self.factor = min((weight + self._taken) / (weight + self._expected), 1.0)


class Calibration:
    """The records of one tenant, by kind of proposer and class of levels.

    Levels have records of their own because claims err more at greater depth.
    """

    def __init__(self) -> None:
        self._records: dict[int, list[_ClassRecord]] = {}  # kind -> [class of levels]

    @property
    def factors(self) -> dict[tuple[int, int], float]:
        """Factors of classes with a record, by kind of proposer and minimum depth of the class."""
        return {
            (kind, depth): records[_class_of(depth)].factor
            for kind, records in self._records.items()
            for depth in _LEVELS
            if records[_class_of(depth)].claimed
        }

    def trusted(self, proposer: int, depth: int, claimed: float) -> float:
        """The calibrated chance of an edge whose child is `depth` levels below the root."""
        chance = claimed * self.factor(proposer, depth)
        return chance if chance < HIGHEST else HIGHEST

    def observe(self, claims: Claims) -> None:
        """Record claims whose outcome the target's walk has decided."""
        records = self._records.get(claims.proposer)
        if records is None:
            records = self._records[claims.proposer] = [_ClassRecord() for _ in _LEVELS]
        records[_class_of(claims.depth)].observe(claims.named, claims.claimed, claims.taken)

    def factor(self, proposer: int, depth: int) -> float:
        """The factor on claims of this kind of proposer at this depth."""
        records = self._records.get(proposer)
        if records is None:
            return TUNING.caution
        return records[_class_of(depth)].factor


class CommittedStep(NamedTuple):
    """The tokens of a verdict, and the claims for them where the target chose them."""

    tokens: Sequence[int]
    claimed: Sequence[Claimed]  # [tokens] as CandidateTree.commit returns them

    def named(self) -> list[int]:
        """[tokens] the kind of the proposer that claimed the greatest chance for each.

        The last token was in no forward pass, so it has no proposer.
        """
        met = zip(self.claimed[:-1], self.tokens, strict=False)
        return [*(_boldest(claimed, token) for claimed, token in met), NOBODY]

    def claims(self) -> Iterator[Claims]:
        """Yield the claims that the walk has decided.

        At each of its nodes these are the claims for all children. Children outside the forward
        pass count, too, because the target has chosen among all of them.
        """
        for depth, (token, claimed) in enumerate(zip(self.tokens, self.claimed, strict=True), 1):
            for proposer, chances in claimed.items():
                yield Claims(proposer, depth, len(chances), sum(chances.values()), token in chances)


def _boldest(claimed: Claimed, token: int) -> int:
    return max(claimed, key=lambda proposer: claimed[proposer].get(token, -1.0), default=NOBODY)
