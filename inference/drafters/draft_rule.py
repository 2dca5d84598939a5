"""The rule of a text, as its draft asks it: which tokens may follow a node, and which have to.

The target follows the rule in any case. So where it cannot be made, or cannot go on, everything may
follow: that costs speed and never changes the text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from inference.errors import InvalidRequest
from inference.growing_tree import GrowingTree, Mark
from inference.sampling import SamplingParams
from inference.token_rule import Adjustment, TokenRule
from inference.tree import TreeNodes

log = logging.getLogger(__name__)

T = TypeVar("T")

MakeRule: TypeAlias = Callable[[Sequence[int], SamplingParams], TokenRule | None]
"""Makes the rule of a text by its prompt; None: the draft goes without. Raises InvalidRequest."""


def no_rule(prompt: Sequence[int], params: SamplingParams) -> None:
    """Make none, whatever the parameters say."""


class DraftRule:
    """The rule of one text, if it has one."""

    _rule: TokenRule | None

    def __init__(self, make: MakeRule, prompt: Sequence[int], params: SamplingParams) -> None:
        self._rule = None
        try:
            self._rule = make(prompt, params) if params.adjusts else None
        except (InvalidRequest, ImportError) as error:
            self._give_up(error)

    @property
    def adjusts(self) -> bool:
        """Whether it adjusts what a draft ranks."""
        return self._rule is not None

    def commit(self, tokens: Sequence[int]) -> None:
        """Go on by committed tokens."""
        if self._rule is not None:
            self._rule.commit(tokens)

    def adjust(self, tree: TreeNodes, nodes: Sequence[int]) -> Adjustment:
        """Return what adjusts the logits at these nodes of a tree; see TokenRule.adjust()."""
        return self._ask(lambda rule: rule.adjust(tree, nodes), Adjustment.none(len(nodes)))

    def forced(self, tree: GrowingTree, node: Mark) -> Sequence[int]:
        """Return the tokens that have to follow a node: a brace or a key that the grammar leaves no
        choice about.
        """
        return self._ask(lambda rule: rule.forced(tree.path(node)), ())

    def allows(self, tree: GrowingTree, node: Mark, tokens: Sequence[int]) -> list[bool]:
        """Return for each token whether it may follow a node."""
        return self._ask(lambda rule: rule.allows(tree.path(node), tokens), [True] * len(tokens))

    def _ask(self, question: Callable[[TokenRule], T], otherwise: T) -> T:
        if self._rule is None:
            return otherwise
        try:
            return question(self._rule)
        except InvalidRequest as error:
            self._give_up(error)
            return otherwise

    def _give_up(self, error: Exception) -> None:
        self._rule = None
        log.warning("a text is drafted without its rule: %s", error)
