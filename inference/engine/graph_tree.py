"""Trees that the target's own graph drafts: a tree of a fixed shape whose tokens come back with the
verdict, and the policy that grows the same tree outside of a graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.accept import Verdict
from inference.drafters.growth import Growth
from inference.drafters.tree_policies import Budget, Rank
from inference.tree import IntArray, TokenTree
from inference.tree_shape import Branches

NONE = -1
"""In a graph's answer: no node of this depth was accepted."""


@dataclass(frozen=True)
class Branching:
    """A Policy (inference/drafters/tree_policies.py): trees of one shape, drafted level by level."""

    shape: Branches

    @property
    def most_ranked(self) -> int:
        return self.shape.inner

    def grow(self, root: int, budget: Budget, rank: Rank) -> Growth:
        growth, level = Growth(root, min(self.shape.nodes - 1, budget.nodes)), [0]
        for branch in self.shape.branches[: budget.depth]:
            ids = rank(growth.tree, level, branch).ids
            level = [
                growth.add(parent, token, 1.0)
                for parent, tokens in zip(level, ids.tolist(), strict=True)
                for token in tokens
            ]
        return growth


@lru_cache(maxsize=16)
def blank_tree(shape: Branches) -> TokenTree:
    """A tree of this shape, its tokens placeholders."""
    return TokenTree(_unknown(0, shape.nodes), np.array(shape.parents, dtype=np.int32))


def inner_tree(shape: Branches, root: int) -> TokenTree:
    """What the draft forwards, the tokens below the root still unknown."""
    return TokenTree(
        _unknown(root, shape.inner), np.array(shape.parents[: shape.inner], dtype=np.int32)
    )


class GraphTree(TokenTree):
    """A tree under `root` that is drafted and verified in one call; until filled() its tokens below
    the root mean nothing.

    limit: accepted tokens at most; deeper nodes are there all the same, and count as of this depth.
    draft: the draft's share of the call (an inference.backends.Segment, which this module does not
    import).
    """

    def __init__(self, shape: Branches, root: int, limit: int, draft: Any) -> None:
        super().__init__(_unknown(root, shape.nodes), np.array(shape.parents, dtype=np.int32))
        self.__dict__.update(shape=shape, limit=limit, draft=draft)

    shape: Branches
    limit: int
    draft: Any

    @cached_property
    def depths(self) -> IntArray:  # [n]
        """Edges between the root and each node, but at most the limit: no position lies beyond
        the end of the text.
        """
        return np.minimum(np.array(self.shape.depths, dtype=np.int32), self.limit)

    def filled(self, answer: NDArray[Any]) -> Verdict:
        """Take the tokens from the graph's answer; returns what was accepted, cut to the limit.

        answer: [nodes - 1 + depth + 1] int32: the drafted tokens, the accepted node of each depth
        or NONE, the target's token after them.
        """
        drafted, path, next_token = np.split(answer, [len(self) - 1, len(answer) - 1])
        tokens = TokenTree(
            np.concatenate([self.tokens[:1], drafted.astype(np.int32)]), self.parents
        ).tokens  # checked: siblings are distinct
        self.__dict__.pop("_children", None)
        self.__dict__.update(tokens=tokens)
        accepted = tuple(int(node) for node in path if node != NONE)
        if len(accepted) > self.limit:
            return Verdict(accepted[: self.limit], int(tokens[accepted[self.limit]]))
        return Verdict(accepted, int(next_token[0]))


def _unknown(root: int, nodes: int) -> IntArray:
    """Placeholders, distinct as siblings must be."""
    tokens = np.arange(nodes, dtype=np.int32)
    tokens[0] = root
    return tokens
