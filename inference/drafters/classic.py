"""Drafting for classic acceptance: trees of a fixed shape, drawn from the draft's distribution without replacement.

Both models must live in one process, where the draft's probabilities are free. The text is distributed as the target's own at the same
temperature, top-k and top-p, but is not the target's seeded text: it depends on the draft and the shape of the trees, too. For the same
two and the same seed it is the same again. At temperature 0 nothing is drawn, and it is the target's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.accept import Verdict
from inference.backends import Model, Probabilities
from inference.drafters.model import ModelDrafter
from inference.drawing import Chance, draw_tree
from inference.errors import InvalidRequest
from inference.policy import BestFirst, Budget, Chain, Policy, Static, best_static_tree
from inference.sampling import SamplingParams
from inference.sequence import ModelSequence
from inference.tree import TokenTree
from inference.verification import probabilities_of

DRAW_RATES = (0.71, 0.1, 0.05, 0.02, 0.015, 0.01)
"""How often the first, second, ... drawn sibling is accepted: of the embedded pair at temperatures 0.7 and 1 (`python -m benchmarks.classic`)."""


def fixed_shape(policy: Policy) -> Static:
    """The shape that is drawn where a policy is asked for; of one that follows the draft's confidence, the best fixed tree of its size.

    A shape that depends on what was drawn would bias the text. Raises InvalidRequest for a policy of which nothing fixed can be made.
    """
    if isinstance(policy, Chain):
        return Static((1.0,), policy.length, policy.length)
    if isinstance(policy, BestFirst):
        return Static(DRAW_RATES, policy.nodes, policy.depth)
    if isinstance(policy, Static):
        return policy
    raise InvalidRequest(
        f"classic acceptance draws trees of a fixed shape, which {policy} has not: ask for a chain or a tree of so many nodes"
    )


class ClassicDrafter:
    """A Drafter on one row of a draft model: draws trees at temperatures above 0, and ranks children for matching at temperature 0.

    Raises InvalidRequest for a model that gives no probabilities.
    """

    def __init__(self, model: Model, policy: Policy, *, row: int = 0) -> None:
        self._ranking = ModelDrafter(model, policy, row=row)
        self._drawing = _DrawingDrafter(probabilities_of(model), fixed_shape(policy), row)
        self._used: ModelDrafter | _DrawingDrafter = self._ranking

    def open(self, prompt: Sequence[int], params: SamplingParams) -> None:
        self._used = self._ranking if params.greedy else self._drawing
        self._used.open(prompt, params)

    def draft(self, root: int, budget: Budget) -> TokenTree:
        return self._used.draft(root, budget)

    def ahead(self) -> bool:
        """Nothing is prepared: the verdict comes from the same machine."""
        return False

    def commit(self, tree: TokenTree, verdict: Verdict) -> None:
        self._used.commit(tree, verdict)

    def close(self) -> None:
        self._used.close()


class _Sequence(ModelSequence):
    """A sequence whose model gives probabilities."""

    def __init__(self, model: Probabilities, row: int, params: SamplingParams) -> None:
        super().__init__(model, row, params)
        self._giving = model

    def distributions(
        self, tree: TokenTree, nodes: Sequence[int]
    ) -> NDArray[np.floating[Any]]:  # [m, V]
        """How probable each child of `nodes` is; their ancestors were asked about in earlier calls on the same growing tree."""
        return self._giving.distributions([self._segment(tree, nodes)])[0]


class _DrawingDrafter:
    """Draws at temperatures above 0."""

    def __init__(self, model: Probabilities, shape: Static, row: int) -> None:
        self._model, self._shape, self._row = model, shape, row
        self._sequence: _Sequence | None = None
        self._chance = Chance(0)

    def open(self, prompt: Sequence[int], params: SamplingParams) -> None:
        self._sequence, self._chance = (
            _Sequence(self._model, self._row, params),
            Chance(params.seed),
        )
        self._sequence.extend(prompt[:-1])

    def draft(self, root: int, budget: Budget) -> TokenTree:
        live = self._live
        live.abandon()  # a tree that was drafted and never committed
        shape = best_static_tree(
            self._shape.rates,
            min(self._shape.nodes, budget.nodes),
            min(self._shape.depth, budget.depth),
        )
        return draw_tree(root, shape, live.length + 1, self._chance, self._likely)

    def commit(self, tree: TokenTree, verdict: Verdict) -> None:
        self._live.commit(tree, verdict.path)

    def close(self) -> None:
        self._sequence = None

    def _likely(self, tree: TokenTree, nodes: Sequence[int]) -> NDArray[np.floating[Any]]:
        return self._live.distributions(tree, nodes)

    @property
    def _live(self) -> _Sequence:
        assert self._sequence is not None, "open() comes first"
        return self._sequence
