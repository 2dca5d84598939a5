"""What a walk of the target decided: who had named its tokens, and what became of all claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from inference.candidates import SiblingGroup
from inference.engine.calibration import Claims
from inference.proposer import NOBODY


class CommittedStep(NamedTuple):
    """The tokens of a verdict, and the groups in which the target chose them."""

    tokens: Sequence[int]
    groups: Sequence[SiblingGroup | None]  # [tokens] as CandidateTree.advance returns them

    def named(self) -> list[int]:
        """[tokens] the kind of the proposer that claimed the greatest chance for each.

        The last token was in no forward, so it is nobody's.
        """
        met = zip(self.groups[:-1], self.tokens, strict=False)
        return [*(_boldest(group, token) for group, token in met), NOBODY]

    def claims(self) -> Iterator[Claims]:
        """Yield the claims that the walk has decided.

        At each of its nodes these are the claims for all children. Children outside the forward
        count, too, because the target has chosen among all of them.
        """
        for depth, (token, group) in enumerate(zip(self.tokens, self.groups, strict=True), 1):
            for proposer, claimed in group.claims.items() if group else ():
                sum_claimed = sum(claimed.values())
                yield Claims(proposer, depth, len(claimed), sum_claimed, token in claimed)


def _boldest(group: SiblingGroup | None, token: int) -> int:
    claims = group.claims if group else {}
    return max(claims, key=lambda proposer: claims[proposer].get(token, -1.0), default=NOBODY)
