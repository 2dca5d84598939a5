"""Drafting in the target's own graph: the drafter keeps the draft's row, and sends trees that only the round itself fills in."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from inference.accept import Verdict
from inference.backends import RoundModel
from inference.drafters.pool import DraftPool
from inference.errors import LimitExceeded
from inference.graph_tree import Branching, GraphTree, inner_tree
from inference.policy import Budget, Chain, Policy
from inference.sampling import SamplingParams
from inference.sequence import ModelSequence
from inference.tree import TokenTree


class GraphDrafter:
    """A Drafter whose trees are verified by the engine of `model` alone.

    row: of the draft. lock: of the draft, which is fed one prompt at a time. A tree has the graph's shape, whatever the budget's nodes;
    the budget's depth bounds what is accepted of it.
    """

    def __init__(self, model: RoundModel, *, row: int, lock: threading.Lock) -> None:
        self._model, self._row, self._lock = model, row, lock
        self._sequence: ModelSequence | None = None

    def open(self, prompt: Sequence[int], params: SamplingParams) -> None:
        self._sequence = ModelSequence(self._model.draft, self._row, params)
        with self._lock:
            self._sequence.extend(prompt[:-1])

    def draft(self, root: int, budget: Budget) -> TokenTree:
        shape, limit = self._model.shape, min(budget.depth, self._model.shape.depth)
        length = self._live.length
        share = self._live.prepare(inner_tree(shape, root))
        return GraphTree(shape, root, limit, share._replace(positions=np.minimum(share.positions, length + limit)))

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
        super().__init__(
            model, Branching(model.shape), model.shape.nodes - 1, lambda _model, _policy, *, row, lock: GraphDrafter(model, row=row, lock=lock)
        )

    def check(self, policy: Policy) -> None:
        """Raises LimitExceeded for trees of any other shape."""
        chain = isinstance(policy, Chain) and policy.length == self._shape.depth == self._shape.nodes - 1
        if not chain and policy != Branching(self._shape):
            raise LimitExceeded(f"this target's draft is compiled into its graphs, which draft a {self._shape}: ask for no other shape, or for none")
