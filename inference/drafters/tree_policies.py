"""Policies for a draft tree's growth: which nodes the draft ranks next, and which nodes are sent.

A policy calls `rank` for the children of some nodes: the draft's likeliest tokens with their
scores. It adds the children it wants to the Growth, each with its value: the probability that the
target reaches it. Pure: `rank` hides the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from inference.backends import Ranked
from inference.drafters.growth import Growth
from inference.errors import InvalidRequest
from inference.tree import TokenTree

Rank = Callable[[TokenTree, Sequence[int], int], Ranked]
"""rank(tree, nodes, k) returns the k likeliest children of these nodes. Every ancestor of a node
must have been ranked before it.
"""


class Budget(NamedTuple):
    """Limits of one round."""

    nodes: int  # drafted nodes, the root not counted
    depth: int  # of the deepest node


class Policy(Protocol):
    """Grows a tree within a budget."""

    @property
    def most_ranked(self) -> int:
        """Most nodes ranked while growing one tree. Each holds a KV slot of the draft."""
        ...

    def grow(self, root: int, budget: Budget, rank: Rank) -> Growth: ...


@dataclass(frozen=True)
class Chain:
    """A chain of `length` nodes: at each one the draft's likeliest token."""

    length: int

    def __post_init__(self) -> None:
        if self.length < 0:
            raise InvalidRequest(f"a chain's length (gamma) is 0 or more: got {self.length}")

    @property
    def most_ranked(self) -> int:
        return self.length

    def grow(self, root: int, budget: Budget, rank: Rank) -> Growth:
        growth = Growth(root, min(self.length, budget.nodes))
        for leaf in range(min(growth.limit, budget.depth)):
            growth.add(leaf, rank(growth.tree, [leaf], 1).ids[0, 0], 1.0)
        return growth


@dataclass(frozen=True)
class BestFirst:
    """A tree that follows the draft's confidence, grown level by level.

    Only nodes that are still among the `nodes` best are expanded.
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
    def most_ranked(self) -> int:
        return self.nodes * self.depth + 1

    def grow(self, root: int, budget: Budget, rank: Rank) -> Growth:
        growth = Growth(root, min(self.nodes, budget.nodes))
        level = [0]
        for _ in range(min(self.depth, budget.depth)):
            if not level or growth.limit < 1:
                break
            ranked = rank(growth.tree, level, min(self.width, growth.limit))
            edges = edge_values(ranked.scores)  # [m, k]
            worth = (np.array([growth.values[node] for node in level])[:, None] * edges).ravel()
            least = growth.least_of_best(worth.tolist())
            best = [
                index
                for index in np.argsort(-worth, kind="stable")[: growth.limit].tolist()
                if worth[index] >= least and worth[index] > 0
            ]
            level = [
                growth.add(
                    level[index // edges.shape[1]], ranked.ids.ravel()[index], edges.ravel()[index]
                )
                for index in best
            ]
        return growth


def edge_values(scores: NDArray[np.float32]) -> NDArray[np.float64]:  # [m, k] -> [m, k]
    """Probability that the target takes each ranked child: softmax over the k scores.

    Scores are perturbed where the temperature is above 0.
    """
    weights = np.exp(scores.astype(np.float64) - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))
