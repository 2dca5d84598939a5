"""A growing tree of candidates, whose root is always the last committed token.

Draft and target use the same class. A node has an index in flat arrays (its place), which is reused
after the node is removed, and a unique mark. Ranks are sums since the first root, so a new root
changes neither ranks nor their order. Pure: no clock, no model, no network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from inference.tree.token_tree import IntArray

Mark: TypeAlias = int
"""Identifies a node; above 0. The low bits are the node's place in the arrays."""

NOWHERE: Mark = 0

_PLACE_BITS = 20
PLACE: Mark = (1 << _PLACE_BITS) - 1
"""mark & PLACE: the place in the arrays."""

EMPTY = np.inf
"""The rank of an empty place in the arrays."""


class GrowingTree:
    """Nodes below the root, the last committed token.

    position: position of the root in the sequence.
    nodes: [3, size] its rows are `tokens`, `parents` and `positions`, which are views.
    parents: place of the node's parent; -1 for the root.
    positions: position of the node's token in the sequence.
    ranks: [size] minus the logarithm of the node's value (the product of the probabilities on its
        path), or EMPTY at an empty place.
    marks: [places used so far] the mark of the latest node at each place.
    children: node -> token -> child, for nodes that have, or had, children.
    """

    root: Mark

    def __init__(self, token: int, position: int) -> None:
        self.nodes = np.zeros((3, 64), dtype=np.int32)
        self.tokens, self.parents, self.positions = self.nodes
        self.ranks = np.full(64, EMPTY)
        self.marks: list[Mark] = []
        self._free: list[int] = []  # the low bits are places
        self._count = 0
        self._tables: list[dict[Mark, Any]] = []
        self.children: dict[Mark, dict[int, Mark]] = {}
        self.root, self.position = self.add_node(token, -1, position, 0.0), position

    def table(self) -> dict[Mark, Any]:
        """Return an empty table of nodes. The tree removes a node's entry with the node."""
        self._tables.append({})
        return self._tables[-1]

    @property
    def depths(self) -> IntArray:  # [size]
        """Number of edges between the root and the node at each place."""
        depths: IntArray = self.positions - self.position
        return depths

    def rank(self, node: Mark) -> float:
        rank: float = self.ranks.item(node & PLACE)
        return rank

    def token(self, node: Mark) -> int:
        return self.tokens.item(node & PLACE)

    def position_of(self, node: Mark) -> int:
        return self.positions.item(node & PLACE)

    def parent(self, node: Mark) -> Mark:
        """Return the parent of a node; NOWHERE for the root."""
        place = self.parents.item(node & PLACE)
        return NOWHERE if place < 0 else self.marks[place]

    def lives(self, node: Mark) -> bool:
        """Whether the node is still in the tree."""
        place = node & PLACE
        return self.marks[place] == node and self.ranks.item(place) < EMPTY

    def path(self, node: Mark) -> list[int]:
        """Return the tokens on the path from the root (excluded) to the node."""
        tokens = list[int]()
        while above := self.parent(node):
            tokens.append(self.token(node))
            node = above
        return tokens[::-1]

    def walk(self, tokens: Sequence[int]) -> list[Mark]:
        """Return the root and its descendants along these tokens, as far as the tree has them."""
        path = [self.root]
        for token in tokens:
            child = self.children.get(path[-1], {}).get(token)
            if child is None:
                break
            path.append(child)
        return path

    def add_node(self, token: int, parent: int, position: int, rank: float) -> Mark:
        """Store a node without adding it to `children`. parent: place of its parent, or -1."""
        marks, free = self.marks, self._free
        if not free:
            free.append(len(marks))
            marks.append(NOWHERE)
            if len(marks) > len(self.ranks):
                self._grow()
        place = free.pop() & PLACE
        self.tokens[place] = token
        self.parents[place] = parent
        self.positions[place] = position
        self.ranks[place] = rank
        self._count += 1
        mark = marks[place] = self._count << _PLACE_BITS | place
        return mark

    def add_child(self, above: Mark, token: int, rank: float) -> Mark:
        """Add a child. No other child of the node may have the same token."""
        place = above & PLACE
        child = self.add_node(token, place, self.positions.item(place) + 1, rank)
        self.children.setdefault(above, {})[token] = child
        return child

    def advance(self, tokens: Sequence[int]) -> tuple[list[Mark], list[Mark]]:
        """Commit tokens: the last one is the new root, and nodes that are not below it are removed.

        Return the committed nodes, beginning with the former root, and all other removed nodes.
        add_node() may reuse their places.
        """
        passed, node = list[Mark](), self.root
        for token in tokens:
            if node != NOWHERE:
                passed.append(node)
                node = self.children.get(node, {}).pop(token, NOWHERE)
        self.position += len(tokens)
        if node == NOWHERE:
            node = self.add_node(tokens[-1], -1, self.position, self.rank(passed[-1]))
        self.parents[node & PLACE] = -1
        self.root, removed = node, self.prune(passed[:])
        live = np.count_nonzero(self.ranks < EMPTY)
        assert live == len(self.marks) - len(self._free), "a place is lost"
        return passed, removed[len(passed) :]

    def clear(self) -> list[Mark]:
        """Remove and return all nodes below the root."""
        return self.prune(list(self.children.pop(self.root, {}).values()))

    def prune(self, removed: list[Mark]) -> list[Mark]:
        """Remove nodes whose parent is gone, and all nodes below. Return all removed nodes."""
        children = self.children
        for node in removed:  # the list grows during the loop
            if below := children.pop(node, None):
                removed += below.values()
        self.ranks[np.array(removed, dtype=np.int64) & PLACE] = EMPTY
        self._free += removed
        for table in self._tables:
            for node in table.keys() & removed if table else ():
                del table[node]
        return removed

    def _grow(self) -> None:
        self.nodes = np.concatenate([self.nodes, np.zeros_like(self.nodes)], axis=1)
        self.tokens, self.parents, self.positions = self.nodes
        self.ranks = np.concatenate([self.ranks, np.full(len(self.ranks), EMPTY)])
