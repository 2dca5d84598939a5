"""A draft tree under construction. A node's value is the probability that the target reaches it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inference.tree import TokenTree, select


class Growth:
    """A tree of which the `limit` most valuable nodes below the root will be sent.

    Nodes keep their index. The root is node 0, with value 1.
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
        """Return the tree of these nodes, each behind its parent. The first becomes the root."""
        return select(self, nodes)

    def add(self, parent: int, token: int, edge: float) -> int:
        """Add a child whose value is its parent's times `edge`; return its index."""
        self.tokens.append(int(token))
        self.parents.append(parent)
        self.values.append(self.values[parent] * float(edge))
        self.depths.append(self.depths[parent] + 1)
        return len(self) - 1

    def child(self, node: int, token: int) -> int | None:
        """Return the child of `node` that carries `token`, if there is one."""
        return next(
            (
                child
                for child in range(node + 1, len(self))
                if self.parents[child] == node and self.tokens[child] == token
            ),
            None,
        )

    def least_of_best(self, more: Sequence[float]) -> float:
        """Return the value of the `limit`-th most valuable node, counting nodes with the values
        `more`.

        Returns 0 where there are fewer than `limit` nodes.
        """
        if self.limit > len(self) - 1 + len(more):
            return 0.0
        return sorted([*self.values[1:], *more], reverse=True)[self.limit - 1]

    def best(self, depth: int | None = None) -> list[int]:
        """Return the root and the `limit` most valuable nodes, the most valuable first.

        Parents come before their children. Nodes deeper than `depth` are left out.
        """
        allowed = (
            node for node in range(1, len(self)) if depth is None or self.depths[node] <= depth
        )
        return [0, *sorted(allowed, key=self.values.__getitem__, reverse=True)[: self.limit]]
