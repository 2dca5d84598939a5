"""A draft tree under construction: nodes with the probability that the target's path reaches them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from inference.tree import TokenTree


class Subtree(NamedTuple):
    """What is left of a Growth under one of its nodes, and where its nodes were before: place[old] == new."""

    growth: Growth
    place: dict[int, int]


class Growth:
    """A tree of which the `limit` most valuable nodes below the root will be sent; nodes keep their index, the root is node 0 with value 1."""

    def __init__(self, root: int, limit: int) -> None:
        self.limit = limit
        self.tokens, self.parents, self.values, self.depths = [root], [-1], [1.0], [0]
        self._children: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def tree(self) -> TokenTree:
        return TokenTree(np.array(self.tokens, dtype=np.int32), np.array(self.parents, dtype=np.int32))

    def add(self, parent: int, token: int, edge: float) -> int:
        """A child whose value is its parent's times `edge`; returns its index."""
        self.tokens.append(int(token))
        self.parents.append(parent)
        self.values.append(self.values[parent] * float(edge))
        self.depths.append(self.depths[parent] + 1)
        self._children[parent, int(token)] = len(self) - 1
        return len(self) - 1

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` that carries `token`, if there is one."""
        return self._children.get((node, token))

    def least_of_best(self, more: Sequence[float]) -> float:
        """The value of the `limit`-th most valuable node if nodes of these values joined; 0 when there are fewer."""
        ranked = heapq.nlargest(self.limit, [*self.values[1:], *more])
        return ranked[-1] if len(ranked) == self.limit else 0.0

    def best(self, depth: int | None = None, root: int = 0) -> list[int]:
        """`root` and the `limit` most valuable nodes below it, none deeper than `depth`, in order of value; parents before children."""
        allowed = (node for node in self._below(root) if depth is None or self.depths[node] <= depth)
        return [root, *heapq.nsmallest(self.limit, allowed, key=lambda node: (-self.values[node], node))]

    def _below(self, root: int) -> Iterable[int]:
        if root == 0:
            return range(1, len(self))
        inside = {root}
        for node in range(root + 1, len(self)):
            if self.parents[node] in inside:
                inside.add(node)
        return sorted(inside - {root})

    def under(self, node: int) -> Subtree:
        """The tree below `node`, which becomes the root: what is known when the target's path has reached it."""
        place = {node: 0}
        growth = Growth(self.tokens[node], self.limit)
        for old in range(node + 1, len(self)):
            parent = place.get(self.parents[old])
            if parent is not None:
                place[old] = growth.add(parent, self.tokens[old], self.values[old] / self.values[self.parents[old]])
        return Subtree(growth, place)
