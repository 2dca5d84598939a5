"""Calibration of proposers' claimed chances by how many candidates the target accepted.

Clients claim the chances of their candidates, and these divide forward passes among sessions. So a
claim is corrected by the record of the same tenant, kind of proposer and tree level. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inference.engine.tuning import TUNING
from inference.proposer import NOBODY
from inference.tree.candidates import Claims

HIGHEST = 0.999
"""The greatest calibrated chance: no edge is certain before the target has verified it."""

_LEVELS = (1, 2, 4, 8)
"""Minimum depth of each class of tree levels."""


def _class_of(depth: int) -> int:
    """Index in _LEVELS of the class of a depth, which is 1 below the root."""
    return (depth if depth < _LEVELS[-1] else _LEVELS[-1]).bit_length() - 1


class _ClassRecord:
    """Recent claims and acceptances of one class, and the resulting factor."""

    __slots__ = ("claimed", "factor", "taken")

    def __init__(self) -> None:
        self.claimed = self.taken = 0.0
        self.factor = TUNING.caution

    def observe(self, chances: Mapping[int, float], token: int) -> None:
        """Record the claims for a node's children, of which the target has chosen a token."""
        taken = token in chances
        fading = TUNING.claim_fading ** len(chances)
        self.claimed = fading * self.claimed + sum(chances.values())
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

    def observe(self, tokens: Sequence[int], claimed: Sequence[Claims]) -> None:
        """Record the claims that a forward pass has decided.

        At each node of the walk these are the claims for all children. Children outside the
        forward pass count, too, because the target has chosen among all of them.

        tokens: committed by the pass
        claimed: [tokens] as CandidateTree.commit() returns them
        """
        for depth, (token, claims) in enumerate(zip(tokens, claimed, strict=True), 1):
            for proposer, chances in claims.items():
                records = self._records.get(proposer)
                if records is None:
                    records = self._records[proposer] = [_ClassRecord() for _ in _LEVELS]
                records[_class_of(depth)].observe(chances, token)

    def factor(self, proposer: int, depth: int) -> float:
        """The factor on claims of this kind of proposer at this depth."""
        records = self._records.get(proposer)
        if records is None:
            return TUNING.caution
        return records[_class_of(depth)].factor


def proposers_of(tokens: Sequence[int], claimed: Sequence[Claims]) -> list[int]:  # [tokens]
    """The kind of the proposer that claimed the greatest chance for each token, or NOBODY.

    The last token was in no forward pass, so it has no proposer.

    tokens, claimed: as for Calibration.observe()
    """
    chosen = zip(claimed[:-1], tokens, strict=False)
    return [
        *(
            max(claims, key=lambda kind: claims[kind].get(token, -1.0), default=NOBODY)
            for claims, token in chosen
        ),
        NOBODY,
    ]
