"""Selects the best candidates of all sessions at the beginning of a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from inference.tree.candidates import CandidateTree
from inference.tree.growing_tree import EMPTY, PLACE
from inference.tree.token_tree import IntArray, TokenTree, trees_of

T = TypeVar("T", bound=np.generic)

FloatArray = NDArray[np.float64]
Places = NDArray[np.intp]

CACHED = 16_000
"""Nodes of trees that are searched at once. Larger arrays exceed the processor's cache and need new
pages of memory in each forward pass, which costs more than the search itself.
"""

GROUP = 8
"""Size of a group of nodes. To bound the best nodes' ranks, only each group's best is compared."""


class Selection:
    """The root and best candidates of each session: one row of nodes, the most valuable first.

    Every prefix of a row is a tree.

    sizes: [rows] number of nodes of each row.
    longest: the greatest of `sizes`.
    values: [rows, longest] the probability that the target's walk reaches each node: 1 for roots, 0
        for padding.
    """

    def __init__(
        self, trees: Sequence[CandidateTree], places: Places, ranks: FloatArray, sizes: Places
    ) -> None:
        self.sizes, self.longest = sizes, int(sizes.max())
        self._trees = trees
        roots = [tree.root & PLACE for tree in trees]
        assert places[:, 0].tolist() == roots, "a root ranks before its candidates"
        self._places = places[:, : self.longest]
        self.values: FloatArray = np.exp(ranks[:, :1] - ranks[:, : self.longest])
        self.values[np.arange(self.longest) >= sizes[:, None]] = 0.0

    def begin_pass(self, width: int) -> list[tuple[TokenTree, float]]:
        """Begin a forward pass of the first `width` nodes of each row. Return each row's tree, and
        the expected number of its candidates that the target accepts.
        """
        places, sizes = self._places[:, :width], np.minimum(self.sizes, width)
        nodes = np.empty((len(places), 3, places.shape[1]), dtype=np.int32)
        for tree, row, out, size in zip(self._trees, places, nodes, sizes.tolist(), strict=True):
            tree.begin_pass(row[:size])
            tree.nodes.take(row, axis=1, out=out, mode="clip")  # faster than checking the bounds
        tokens, above, positions = nodes.transpose(1, 0, 2)
        filled = np.arange(places.shape[1]) < sizes[:, None]
        parents = np.where(filled, _parents(places, above, filled), 0)
        parents[:, 0] = -1
        trees = trees_of(tokens, parents, positions - positions[:, :1], sizes.tolist())
        return list(zip(trees, self.values[:, 1:width].sum(axis=1).tolist(), strict=True))


def best_of(
    trees: Sequence[CandidateTree], limits: Sequence[int], depths: Sequence[int]
) -> Selection:
    """Select the best nodes of each tree.

    limits: [trees] maximum nodes of each tree, the root included.
    depths: [trees] maximum levels below the root of each tree.
    """
    size = max(CACHED // max(tree.places for tree in trees), 1)
    groups = [slice(start, start + size) for start in range(0, len(trees), size)]
    leading = [_leading(trees[group], limits[group], depths[group]) for group in groups]
    counts, places, ranks = (np.concatenate(column) for column in zip(*leading, strict=True))
    return _sorted(trees, counts, places, ranks, np.array(limits))


def lines_of(
    trees: Sequence[CandidateTree], limits: Sequence[int], depths: Sequence[int]
) -> Selection:
    """Select a chain from each tree, from each node to its most likely child.

    limits, depths: as for best_of().
    """
    lines = [
        _line(tree, min(limit, depth + 1))
        for tree, limit, depth in zip(trees, limits, depths, strict=True)
    ]
    ranks = [tree.present_ranks()[line] for tree, line in zip(trees, lines, strict=True)]
    counts = np.array([len(line) for line in lines])
    return _sorted(trees, counts, np.concatenate(lines), np.concatenate(ranks), np.array(limits))


def _line(tree: CandidateTree, limit: int) -> list[int]:
    tree.present_ranks()
    line = [tree.root]
    while len(line) < limit and (children := tree.children.get(line[-1])):
        line.append(min(children.values(), key=tree.rank))
    return [node & PLACE for node in line]


def _leading(
    trees: Sequence[CandidateTree], limits: Sequence[int], depths: Sequence[int]
) -> tuple[Places, Places, FloatArray]:
    """Return the best nodes of each tree, unordered: [trees] their number, [n] places, [n] ranks.

    A tree may have more nodes than its limit.
    """
    ranks = _stacked([tree.present_ranks() for tree in trees], EMPTY)
    deepest = [tree.position + depth for tree, depth in zip(trees, depths, strict=True)]
    if any(limit < tree.deepest for limit, tree in zip(deepest, trees, strict=True)):
        positions = _stacked([tree.positions for tree in trees], 0)[:, : ranks.shape[1]]
        ranks[positions > np.array(deepest)[:, None]] = EMPTY
    # the k-th best of the groups' best nodes bounds the k-th best node, at a fraction of the work
    groups = ranks[:, : ranks.shape[1] // GROUP * GROUP].reshape(len(ranks), GROUP, -1).min(axis=1)
    compared = groups if groups.shape[1] >= max(limits) else ranks
    count = min(max(limits), compared.shape[1])
    bounds = np.partition(compared, count - 1, axis=1)[:, count - 1, None]
    leading = np.flatnonzero((ranks <= bounds) & (ranks < EMPTY))
    rows, places = np.divmod(leading, ranks.shape[1])
    return np.bincount(rows, minlength=len(trees)), places, ranks.ravel()[leading]


def _sorted(
    trees: Sequence[CandidateTree],
    counts: Places,
    places: Places,
    ranks: FloatArray,
    limits: Places,
) -> Selection:
    """Return the selection of the given nodes, in order of rank.

    counts: [trees] number of nodes of each tree.
    places, ranks: [n] places and ranks of all nodes, tree by tree.
    limits: [trees] maximum nodes of each row.
    """
    filled = np.arange(counts.max()) < counts[:, None]
    own_ranks, own_places = np.full(filled.shape, EMPTY), np.zeros(filled.shape, dtype=np.intp)
    own_ranks[filled], own_places[filled] = ranks, places
    order = own_ranks.argsort(axis=1, kind="stable")
    return Selection(
        trees,
        np.take_along_axis(own_places, order, axis=1),
        np.take_along_axis(own_ranks, order, axis=1),
        np.minimum(counts, limits),
    )


def _parents(places: Places, above: IntArray, filled: NDArray[np.bool_]) -> IntArray:
    """Return the index of each node's parent in its row, [rows, width]; arbitrary if not `filled`.

    places, above: [rows, width] place of each node and of its parent.
    filled: [rows, width] whether the row has a node at this index.
    """
    seats = np.empty((len(places), 1 + max(int(places.max()), int(above.max()))), dtype=np.int32)
    row, seat = filled.nonzero()
    seats[row, places[filled]] = seat
    parents: IntArray = np.take_along_axis(seats, above, axis=1)
    return parents


def _stacked(store: Sequence[NDArray[T]], fill: float) -> NDArray[T]:  # [store, longest]
    """Stack arrays as rows of one array, padded with `fill` to the longest."""
    stacked = np.full(
        (len(store), max(len(column) for column in store)), fill, dtype=store[0].dtype
    )
    for row, column in zip(stacked, store, strict=True):
        row[: len(column)] = column
    return stacked
