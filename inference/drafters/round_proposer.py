"""A proposer for synchronous rounds: it grows a tree from each committed root by a fixed policy.
The tree is complete when work() returns None; then the loop requests a forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inference.backends import Model, Ranked
from inference.backends.sequence import ModelSequence
from inference.drafters.draft_row import DraftRow, DraftRule, MakeRule, no_rule
from inference.drafters.draft_tree import DraftTree
from inference.errors import InvalidRequest
from inference.order import Progress
from inference.proposer import MODEL, DraftUsage, Nodes
from inference.sampling import SamplingParams
from inference.times import Times
from inference.tree.growing_tree import Mark

RankChildren: TypeAlias = Callable[[Sequence[Mark], int], Ranked]
"""rank(nodes, k) returns the k most likely children of these nodes. A node's ancestors must be
ranked before the node.
"""


class Budget(NamedTuple):
    """Limits of one round."""

    nodes: int  # maximum drafted nodes, not counting the root
    depth: int  # maximum depth of a node


class Policy(Protocol):
    """Grows a tree within a budget."""

    @property
    def max_ranked(self) -> int:
        """Maximum nodes ranked for a tree. Each takes a slot of the draft's KV cache."""
        ...

    def grow(self, tree: DraftTree, budget: Budget, rank: RankChildren) -> list[Mark]: ...


@dataclass(frozen=True)
class BestFirst:
    """A tree of the draft's most probable nodes, grown level by level.

    Only nodes that are among the best `nodes` so far are expanded.
    """

    nodes: int
    depth: int
    width: int = 8

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.depth < 1 or self.width < 1:
            raise InvalidRequest(
                f"a tree needs at least one node, depth and width: got {self.nodes}, {self.depth}, "
                f"{self.width}"
            )

    @property
    def max_ranked(self) -> int:
        return sum(min(self.nodes, self.width**level) for level in range(self.depth))

    def grow(self, tree: DraftTree, budget: Budget, rank: RankChildren) -> list[Mark]:
        limit, grown, level = min(self.nodes, budget.nodes), list[Mark](), [tree.root]
        for _ in range(min(self.depth, budget.depth, limit)):
            if not level:
                break
            ids, scores = rank(level, min(self.width, limit))
            above = np.array([tree.rank(node) for node in level])
            with np.errstate(divide="ignore"):  # excluded tokens have probability 0
                ranks = (above[:, None] - np.log(edge_values(scores))).ravel()
            worth = sorted([*map(tree.rank, grown), *ranks.tolist()])
            bound = worth[limit - 1] if limit <= len(worth) else math.inf
            level = [
                tree.add(level[index // ids.shape[1]], int(ids.flat[index]), float(ranks[index]))
                for index in np.argsort(ranks, kind="stable")[:limit].tolist()
                if ranks[index] <= bound and ranks[index] < math.inf
            ]
            grown += level
        return sorted(grown, key=tree.rank)[:limit]


class Chain(BestFirst):
    """A chain of `length` nodes, each the draft's most likely token."""

    def __init__(self, length: int) -> None:
        super().__init__(nodes=length, depth=length, width=1)

    def __post_init__(self) -> None:
        if self.nodes < 0:
            raise InvalidRequest(f"a chain's length (gamma) is 0 or more: got {self.nodes}")


def edge_values(scores: NDArray[np.float32]) -> NDArray[np.float64]:  # [m, k] -> [m, k]
    """Return the probability that the target accepts each ranked child: softmax of the k scores.

    Scores are perturbed if the temperature is above 0.
    """
    weights = np.exp(scores.astype(np.float64) - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


class RoundProposer:
    """A Proposer for synchronous rounds, on one row of a draft model.

    room: maximum nodes of the next tree, as the target last reported
    make_rule: builds the rule of a request
    """

    _rule: DraftRule
    _tree: DraftTree
    _grown: list[Mark] | None  # nodes to send, parents before children
    _sent: bool
    _used: DraftUsage  # usage for the current tree

    def __init__(
        self,
        model: Model,
        policy: Policy,
        *,
        room: int,
        row: int = 0,
        make_rule: MakeRule = no_rule,
    ) -> None:
        self.room, self._policy, self._make_rule = room, policy, make_rule
        begin = partial(ModelSequence, model, row)
        self._row = DraftRow(model, Times(), begin, room=policy.max_ranked)
        self.open([0], SamplingParams(), 1)

    @property
    def usage(self) -> DraftUsage:
        """Work of the model, over all requests so far."""
        return self._row.usage

    def open(self, prompt: Sequence[int], params: SamplingParams, end: int | None = None) -> None:
        longest, self._rule = self._row.longest, DraftRule(self._make_rule, prompt, params)
        end = longest if end is None else min(end, longest)
        self._tree = DraftTree(prompt[-1], len(prompt) - 1, end)
        self._grown, self._sent = None, False
        self._row.open(prompt, params, self._rule, self._tree)

    def on_new_stream(self) -> None:
        self._sent = False
        self._tree.recall()

    def on_progress(self, progress: Progress, now: float) -> None:
        tree, fresh = self._tree, self._tree.new_tokens(progress)
        self.room = progress.room
        if not fresh:
            return
        self._rule.commit(fresh)
        below = [tree.token(tree.root), *fresh[:-1]]
        passed, stale = tree.advance(fresh)
        stale += [tree.root, *tree.clear()]  # a round begins without ranked nodes
        self._row.advance(below, passed, stale)
        self._grown, self._sent = None, False

    def work(self, now: float) -> DraftUsage | None:
        if self._row.feed():
            return DraftUsage()
        if self._grown is not None:
            return None
        tree, self._used = self._tree, DraftUsage()
        depth = max(tree.end - 2 - tree.position, 0)  # the last token is the target's own
        self._grown = self._policy.grow(tree, Budget(self.room if depth else 0, depth), self._rank)
        return self._used

    def flush(self, now: float, first: int) -> Nodes | None:
        if not self._grown or self._sent:
            return None
        self._sent = True
        self._tree.number(self._grown, first)
        return self._tree.message(self._grown, MODEL)

    def close(self) -> None:
        self.open([0], SamplingParams(), 1)

    def _rank(self, nodes: Sequence[Mark], k: int) -> Ranked:
        ranked, seconds = self._row.rank(self._row.segment(nodes), k)
        self._used = self._used.plus(self._row.count(len(nodes), seconds))
        return ranked
