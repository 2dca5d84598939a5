"""A request's token rule, as its draft uses it: which tokens may follow a node, and which must.

The target applies the rule in any case. So if the rule cannot be built or fails, the draft
continues without it, which costs speed and never changes the output.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from inference.errors import InvalidRequest
from inference.sampling import SamplingParams
from inference.token_rule import Adjustment, TokenRule
from inference.tree.growing_tree import GrowingTree, Mark
from inference.tree.token_tree import TreeNodes

log = logging.getLogger(__name__)

T = TypeVar("T")

MakeRule: TypeAlias = Callable[[Sequence[int], SamplingParams], TokenRule | None]
"""Builds a request's rule from prompt and parameters; None for no rule. Raises InvalidRequest."""


def no_rule(prompt: Sequence[int], params: SamplingParams) -> None:
    """Return no rule, whatever the parameters."""


class DraftRule:
    """The rule of one request, if any."""

    _rule: TokenRule | None

    def __init__(self, make: MakeRule, prompt: Sequence[int], params: SamplingParams) -> None:
        self._rule = None
        try:
            self._rule = make(prompt, params) if params.adjusts else None
        except (InvalidRequest, ImportError) as error:
            self._give_up(error)

    @property
    def adjusts(self) -> bool:
        """Whether the rule adjusts the draft's logits."""
        return self._rule is not None

    def commit(self, tokens: Sequence[int]) -> None:
        """Advance by committed tokens."""
        if self._rule is not None:
            self._rule.commit(tokens)

    def adjust(self, tree: TreeNodes, nodes: Sequence[int]) -> Adjustment:
        """Return the adjustment of logits at these nodes of a tree; see TokenRule.adjust()."""
        return self._ask(lambda rule: rule.adjust(tree, nodes), Adjustment.none(len(nodes)))

    def forced(self, tree: GrowingTree, node: Mark) -> Sequence[int]:
        """Return the tokens that must follow a node, such as a brace or a key that a grammar
        requires.
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
        log.warning("drafting without the rule of the text: %s", error)
