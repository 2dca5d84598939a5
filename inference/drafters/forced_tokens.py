"""Forced tokens: a brace or a key that the text's grammar leaves no choice about costs no call.

Where a grammar forces a token, it allows no other. So the token's chance is 1, and nobody else is
asked what follows. A chain of such tokens is named to its end at once.
"""

from __future__ import annotations

from inference.drafters.draft_rule import DraftRule
from inference.drafters.draft_tree import DraftNode


class ForcedTokens:
    """Names the children of a draft tree's nodes by what a text's grammar forces."""

    def __init__(self, rule: DraftRule) -> None:
        self._rule = rule

    def name(self, node: DraftNode) -> bool:
        """Note what is forced behind the node; returns whether anything is."""
        above = node.parent
        node.forced = () if above is None else above.forced[1:]
        if not node.forced:
            node.forced = self._rule.forced(node)
        return bool(node.forced)
