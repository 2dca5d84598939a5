"""Splits a segment's tree into lines, one for each leaf, for backends without tree attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.backends import Segment
from inference.errors import InvalidRequest
from inference.tree.token_tree import IntArray


class TreeLine(NamedTuple):
    """A chain of a segment's new nodes, and the context that these nodes see."""

    nodes: NDArray[np.intp]  # [d] from the top down
    path: IntArray  # [c] visible slots, ordered by position


def tips(segment: Segment) -> NDArray[np.intp]:
    """Return the leaves among the new nodes."""
    return np.flatnonzero(segment.tree_mask.sum(axis=0) == 1)


def path_of(positions: IntArray, visible: NDArray[np.bool_]) -> IntArray:
    """Return the visible slots, ordered by position.

    positions: [S or more] position of each slot
    visible: [S]

    Raises InvalidRequest unless the visible positions are 0 to n - 1.
    """
    slots = np.flatnonzero(visible)
    ordered = positions[slots]
    order = ordered.argsort(kind="stable")
    if not np.array_equal(ordered[order], np.arange(len(slots))):
        raise InvalidRequest(
            f"this model needs one key at each position: {len(slots)} slots hold others"
        )
    return np.asarray(slots[order], dtype=np.int32)


def lines_of(segment: Segment, positions: IntArray) -> Iterator[TreeLine]:
    """Yield the lines of a segment. positions: see path_of().

    Raises InvalidRequest if a node's position is not the number of visible keys before the node.
    """
    shared = segment.context.shape[0] == 1
    path = path_of(positions, segment.context[0]) if shared else None
    for tip in tips(segment).tolist():
        nodes = np.flatnonzero(segment.tree_mask[tip])
        nodes = nodes[segment.positions[nodes].argsort(kind="stable")]
        above = path_of(positions, segment.context[tip]) if path is None else path
        expected = np.arange(len(above), len(above) + len(nodes))
        if not np.array_equal(segment.positions[nodes], expected) or (
            path is None and (segment.context[nodes] != segment.context[tip]).any()
        ):
            raise InvalidRequest("this model needs a tree whose nodes see all above them")
        yield TreeLine(nodes, above)
