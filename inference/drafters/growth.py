"""A draft tree under construction: nodes with the probability that the target's path reaches
them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from inference.tree import TokenTree, select


class Subtree(NamedTuple):
    """What is left of a Growth under one of its nodes, and where its nodes were before:
    place[old] == new.
    """

    growth: Growth
    place: dict[int, int]


class Growth:
    """A tree of which the `limit` most valuable nodes below the root will be sent; nodes keep
    their index, the root is node 0 with value 1.
    """

    def __init__(self, root: int, limit: int) -> None:
        self.limit = limit
        self.tokens, self.parents, self.values, self.depths = [root], [-1], [1.0], [0]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def tree(self) -> TokenTree:
        return TokenTree(
            np.array(self.tokens, dtype=np.int32), np.array(self.parents, dtype=np.int32)
        )

    def select(self, nodes: Sequence[int]) -> TokenTree:
        """The tree of these nodes, the first of which becomes the root; each stands after its
        parent.
        """
        return select(self, nodes)

    def add(self, parent: int, token: int, edge: float) -> int:
        """A child whose value is its parent's times `edge`; returns its index."""
        self.tokens.append(int(token))
        self.parents.append(parent)
        self.values.append(self.values[parent] * float(edge))
        self.depths.append(self.depths[parent] + 1)
        return len(self) - 1

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` that carries `token`, if there is one."""
        return next(
            (
                child
                for child in range(node + 1, len(self))
                if self.parents[child] == node and self.tokens[child] == token
            ),
            None,
        )

    def least_of_best(self, more: Sequence[float]) -> float:
        """The value of the `limit`-th most valuable node if nodes of these values joined; 0 when
        there are fewer.
        """
        if self.limit > len(self) - 1 + len(more):
            return 0.0
        return sorted([*self.values[1:], *more], reverse=True)[self.limit - 1]

    def best(self, depth: int | None = None, root: int = 0) -> list[int]:
        """`root` and the `limit` most valuable nodes below it, none deeper than `depth`, in
        order of value; parents before children.
        """
        allowed = (
            node for node in self._below(root) if depth is None or self.depths[node] <= depth
        )
        return [root, *sorted(allowed, key=self.values.__getitem__, reverse=True)[: self.limit]]

    def _below(self, root: int) -> Iterable[int]:
        if root == 0:
            return range(1, len(self))
        inside = {root}
        for node in range(root + 1, len(self)):
            if self.parents[node] in inside:
                inside.add(node)
        return sorted(inside - {root})

    def under(self, node: int) -> Subtree:
        """The tree below `node`, which becomes the root: what is known when the target's path
        has reached it.
        """
        place = {node: 0}
        for old in range(node + 1, len(self)):
            if self.parents[old] in place:
                place[old] = len(place)
        growth, value, depth = (
            Growth(self.tokens[node], self.limit),
            self.values[node],
            self.depths[node],
        )
        growth.tokens = [self.tokens[old] for old in place]
        growth.parents = [place.get(self.parents[old], -1) for old in place]
        growth.values = [self.values[old] / value for old in place]
        growth.depths = [self.depths[old] - depth for old in place]
        return Subtree(growth, place)


class Frontier:
    """Nodes of a Growth whose children are not known yet, most valuable first; equals by index."""

    def __init__(self, growth: Growth, nodes: Iterable[int]) -> None:
        self._growth = growth
        self._nodes = sorted((-growth.values[node], node) for node in nodes)

    def add(self, node: int) -> None:
        insort(self._nodes, (-self._growth.values[node], node))

    def best(self, most: int, depth: int) -> list[int]:
        """Up to `most` nodes that are less deep than `depth`."""
        depths = self._growth.depths
        return list(islice((node for _, node in self._nodes if depths[node] < depth), max(most, 0)))

    def remove(self, node: int) -> None:
        """A node that is in it."""
        del self._nodes[bisect_left(self._nodes, (-self._growth.values[node], node))]
