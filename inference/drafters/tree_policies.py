"""Policies for a draft tree's growth: which nodes the draft ranks next, and which nodes are sent.

A policy calls `rank` for the children of some nodes: the draft's likeliest tokens with their
scores. It adds the children it wants to the Growth, each with its value: the probability that the
target reaches it. Pure: `rank` hides the model.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
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
class Static:
    """The best tree of one fixed shape, given how often the target takes the child of each rank.

    rates: probability that the target's token is the draft's child of rank 0, 1, ...;
        non-increasing, with a sum of at most 1
    """

    rates: tuple[float, ...]
    nodes: int
    depth: int

    def __post_init__(self) -> None:
        rates = np.array(self.rates)
        if (
            not len(rates)
            or rates.min() <= 0
            or rates.sum() > 1 + 1e-9
            or (np.diff(rates) > 0).any()
        ):
            raise InvalidRequest(
                "rank rates must be positive, non-increasing and add up to at most 1: got "
                f"{self.rates}"
            )

    @property
    def most_ranked(self) -> int:
        return self.nodes

    def grow(self, root: int, budget: Budget, rank: Rank) -> Growth:
        growth = Growth(root, min(self.nodes, budget.nodes))
        shape = best_static_tree(self.rates, growth.limit, min(self.depth, budget.depth))
        place = {0: 0}  # node of the shape -> node of the growth
        for level in _levels(shape):
            parents = sorted({edge.parent for edge in level})
            ranked = rank(
                growth.tree,
                [place[parent] for parent in parents],
                1 + max(edge.rank for edge in level),
            )
            row = {parent: index for index, parent in enumerate(parents)}
            for edge in level:
                place[edge.node] = growth.add(
                    place[edge.parent],
                    ranked.ids[row[edge.parent], edge.rank],
                    self.rates[edge.rank],
                )
        return growth


class Edge(NamedTuple):
    """A node of a static shape: the child of rank `rank` below node `parent`."""

    node: int
    parent: int
    rank: int
    depth: int


@lru_cache(maxsize=256)
def best_static_tree(rates: tuple[float, ...], nodes: int, depth: int) -> tuple[Edge, ...]:
    """Return the `nodes` nodes that the target reaches most probably, numbered from 1, likeliest
    first.

    A node's worth is the product of the rates on its path; a tree's worth is the sum over its
    nodes. With non-increasing rates a parent and an elder sibling are worth at least as much as the
    node. So taking the best next node each time is optimal.
    """
    shape: list[Edge] = []
    heap = [(-rates[0], 0, 0, 1)] if depth > 0 else []  # (-worth, parent, rank, depth)
    while heap and len(shape) < nodes:
        worth, parent, rank, level = heapq.heappop(heap)
        node = len(shape) + 1
        shape.append(Edge(node, parent, rank, level))
        if rank + 1 < len(rates):
            heapq.heappush(heap, (worth / rates[rank] * rates[rank + 1], parent, rank + 1, level))
        if level < depth:
            heapq.heappush(heap, (worth * rates[0], node, 0, level + 1))
    return tuple(shape)


def _levels(shape: tuple[Edge, ...]) -> list[list[Edge]]:
    deepest = max((edge.depth for edge in shape), default=0)
    return [[edge for edge in shape if edge.depth == depth] for depth in range(1, deepest + 1)]


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
