"""Drafting with a small model: a policy grows the tree, the model ranks children under the target's own noise."""

from __future__ import annotations

from collections.abc import Sequence

from inference.accept import Verdict
from inference.backends import Model
from inference.policy import Budget, Policy, Ranked
from inference.sampling import SamplingParams
from inference.sequence import ModelSequence
from inference.tree import TokenTree


class ModelDrafter:
    """A Drafter on one row of a draft model."""

    def __init__(self, model: Model, policy: Policy, *, row: int = 0) -> None:
        self._model, self._policy, self._row = model, policy, row
        self._sequence: ModelSequence | None = None
        self._grown, self._sent = TokenTree.chain([0]), [0]

    def open(self, prompt: Sequence[int], params: SamplingParams) -> None:
        self._sequence = ModelSequence(self._model, self._row, params)
        self._sequence.extend(prompt[:-1])

    def draft(self, root: int, budget: Budget) -> TokenTree:
        self._live.abandon()  # a tree that was drafted and never committed
        growth = self._policy.grow(root, budget, self._rank)
        self._grown, self._sent = growth.tree, growth.best()
        return self._grown.select(self._sent)

    def ahead(self) -> bool:
        """A fixed policy waits for its verdict."""
        return False

    def commit(self, tree: TokenTree, verdict: Verdict) -> None:
        self._live.commit(self._grown, [self._sent[node] for node in verdict.path])

    def close(self) -> None:
        self._sequence = None

    def _rank(self, tree: TokenTree, nodes: Sequence[int], k: int) -> Ranked:
        return self._live.rank(tree, nodes, k)

    @property
    def _live(self) -> ModelSequence:
        assert self._sequence is not None, "open() comes first"
        return self._sequence
