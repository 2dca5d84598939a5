"""Policies for a draft tree's growth: which nodes the draft ranks next, and which nodes are sent.

A policy calls `rank` for the children of some nodes: the draft's likeliest tokens with their
scores. It adds the children it wants to the tree, each with its value: the probability that the
target reaches it. Pure: `rank` hides the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inference.backends import Ranked
from inference.drafters.draft_tree import DraftNode, DraftTree
from inference.errors import InvalidRequest

Rank: TypeAlias = Callable[[Sequence[DraftNode], int], Ranked]
"""rank(nodes, k) returns the k likeliest children of these nodes. Every ancestor of a node must
have been ranked before it.
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

    def grow(self, tree: DraftTree, budget: Budget, rank: Rank) -> list[DraftNode]: ...


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

    def grow(self, tree: DraftTree, budget: Budget, rank: Rank) -> list[DraftNode]:
        line = [tree.root]
        for _ in range(min(self.length, budget.nodes, budget.depth)):
            token = int(rank(line[-1:], 1).ids[0, 0])
            line.append(tree.add(line[-1], token, tree.root.log))
        return line[1:]


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

    def grow(self, tree: DraftTree, budget: Budget, rank: Rank) -> list[DraftNode]:
        limit, grown, level = min(self.nodes, budget.nodes), list[DraftNode](), [tree.root]
        for _ in range(min(self.depth, budget.depth)):
            if not level or limit < 1:
                break
            ids, scores = rank(level, min(self.width, limit))
            above = np.array([node.log for node in level])
            with np.errstate(divide="ignore"):  # excluded tokens have no chance
                logs = (above[:, None] + np.log(edge_values(scores))).ravel()
            worth = sorted([*(node.log for node in grown), *logs.tolist()], reverse=True)
            least = worth[limit - 1] if limit <= len(worth) else -math.inf
            level = [
                tree.add(level[index // ids.shape[1]], int(ids.flat[index]), float(logs[index]))
                for index in np.argsort(-logs, kind="stable")[:limit].tolist()
                if logs[index] >= least and logs[index] > -math.inf
            ]
            grown += level
        return sorted(grown, key=lambda node: node.log, reverse=True)[:limit]


def edge_values(scores: NDArray[np.float32]) -> NDArray[np.float64]:  # [m, k] -> [m, k]
    """Probability that the target takes each ranked child: softmax over the k scores.

    Scores are perturbed where the temperature is above 0.
    """
    weights = np.exp(scores.astype(np.float64) - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))
