"""Drafting in the target's own graph: the drafter keeps the draft's row, and sends trees that only the round itself fills in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inference.accept import Verdict
from inference.backends import Model, RoundModel
from inference.drafters.pool import DraftPool
from inference.errors import LimitExceeded
from inference.graph_tree import Branching, GraphTree, inner_tree
from inference.policy import Budget, Chain, Policy
from inference.sampling import SamplingParams
from inference.sequence import ModelSequence
from inference.tree import TokenTree


class GraphDrafter:
    """A Drafter whose trees are verified by the engine of `model` alone.

    draft: the model's, for several threads; row: of it. A tree has the graph's shape, whatever the budget's nodes; the budget's depth bounds
    what is accepted of it.
    """

    def __init__(self, model: RoundModel, draft: Model, *, row: int) -> None:
        self._model, self._draft, self._row = model, draft, row
        self._sequence: ModelSequence | None = None

    def open(self, prompt: Sequence[int], params: SamplingParams) -> None:
        self._sequence = ModelSequence(self._draft, self._row, params)
        self._sequence.extend(prompt[:-1])

    def draft(self, root: int, budget: Budget) -> TokenTree:
        shape, limit = self._model.shape, min(budget.depth, self._model.shape.depth)
        length = self._live.length
        share = self._live.prepare(inner_tree(shape, root))
        return GraphTree(
            shape,
            root,
            limit,
            share._replace(positions=np.minimum(share.positions, length + limit)),
        )

    def ahead(self) -> bool:
        """Nothing: the next tree is drafted by the next round."""
        return False

    def commit(self, tree: TokenTree, verdict: Verdict) -> None:
        self._live.commit(tree, verdict.path)

    def close(self) -> None:
        self._sequence = None

    @property
    def _live(self) -> ModelSequence:
        assert self._sequence is not None, "open() comes first"
        return self._sequence


class GraphPool(DraftPool):
    """Drafters of the model's own draft, a row each. All trees have the graph's shape."""

    def __init__(self, model: RoundModel) -> None:
        self._shape = model.shape
        room = model.shape.nodes - 1
        super().__init__(
            model.draft,
            Branching(model.shape),
            room,
            lambda draft, _policy, *, row: GraphDrafter(model, draft, row=row),
        )

    def check(self, policy: Policy) -> None:
        """Raises LimitExceeded for trees of any other shape."""
        chain = (
            isinstance(policy, Chain)
            and policy.length == self._shape.depth == self._shape.nodes - 1
        )
        if not chain and policy != Branching(self._shape):
            raise LimitExceeded(
                f"this target's draft is compiled into its graphs, which draft a {self._shape}: ask for no other shape, or for none"
            )
