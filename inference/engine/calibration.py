"""Corrects the probabilities that proposers claim, which decide each session's share of a forward
pass, by how many candidates of the tenant the target accepted. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inference.engine.tuning import TUNING
from inference.proposer import NOBODY
from inference.tree.candidates import Claims

HIGHEST = 0.999
"""Maximum calibrated probability: no edge is certain before the target has verified it."""

_LEVELS = (1, 2, 4, 8)
"""Minimum depth of each class of tree levels."""


def _class_of(depth: int) -> int:
    """Return the index in _LEVELS of a depth's class. The level below the root has depth 1."""
    return (depth if depth < _LEVELS[-1] else _LEVELS[-1]).bit_length() - 1


class _ClassRecord:
    """Recent claims and acceptances of one class of levels, and the resulting factor."""

    __slots__ = ("accepted", "claimed", "factor")

    def __init__(self) -> None:
        self.claimed = self.accepted = 0.0
        self.factor = TUNING.caution

    def observe(self, chances: Mapping[int, float], token: int) -> None:
        """Record the claims for a node's children, and the token that the target chose there."""
        accepted = token in chances
        fading = TUNING.claim_fading ** len(chances)
        self.claimed = fading * self.claimed + sum(chances.values())
        self.accepted = fading * self.accepted + accepted
        weight = TUNING.caution_weight
        factor = (TUNING.caution * weight + self.accepted) / (weight + self.claimed)
        self.factor = min(factor, TUNING.max_trust)


class OwnRecord:
    """Outcome of one session's candidates, since its draft may be worse than the tenant's others.

    factor: accepted candidates divided by expected ones, at most 1.
    """

    def __init__(self) -> None:
        self._expected = self._accepted = 0.0
        self.factor = 1.0

    def observe(self, expected: float, accepted: int) -> None:
        """Record the expected and actual number of a forward pass's accepted candidates."""
        self._expected = TUNING.own_fading * self._expected + expected
        self._accepted = TUNING.own_fading * self._accepted + accepted
        weight = TUNING.own_weight
        self.factor = min((weight + self._accepted) / (weight + self._expected), 1.0)


class Calibration:
    """The records of one tenant, by kind of proposer and class of levels.

    Each class of levels has its own record because claims err more at greater depth.
    """

    def __init__(self) -> None:
        self._records: dict[int, list[_ClassRecord]] = {}  # kind -> [class of levels]

    @property
    def factors(self) -> dict[tuple[int, int], float]:
        """Calibration factors, by kind of proposer and minimum depth of the class of levels."""
        return {
            (kind, depth): records[_class_of(depth)].factor
            for kind, records in self._records.items()
            for depth in _LEVELS
            if records[_class_of(depth)].claimed
        }

    def trusted(self, proposer: int, depth: int, claimed: float) -> float:
        """Return the calibrated probability of an edge to a child `depth` levels below the root."""
        chance = claimed * self.factor(proposer, depth)
        return chance if chance < HIGHEST else HIGHEST

    def observe(self, tokens: Sequence[int], claimed: Sequence[Claims]) -> None:
        """Record the claims that a forward pass has decided.

        These are the claims for all children of each accepted node, including children that were
        not in the pass, because the target's choice decides about all of them.

        tokens: tokens committed by the pass
        claimed: [tokens] as CandidateTree.commit() returns them
        """
        for depth, (token, claims) in enumerate(zip(tokens, claimed, strict=True), 1):
            for proposer, chances in claims.items():
                records = self._records.get(proposer)
                if records is None:
                    records = self._records[proposer] = [_ClassRecord() for _ in _LEVELS]
                records[_class_of(depth)].observe(chances, token)

    def factor(self, proposer: int, depth: int) -> float:
        """Return the factor on claims of this kind of proposer at this depth."""
        records = self._records.get(proposer)
        if records is None:
            return TUNING.caution
        return records[_class_of(depth)].factor


def proposers_of(tokens: Sequence[int], claimed: Sequence[Claims]) -> list[int]:  # [tokens]
    """Return the kind of proposer that claimed the most for each token, or NOBODY.

    The last token is the target's own and not a computed candidate, so it has no proposer.

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
