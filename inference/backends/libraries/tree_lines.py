"""The lines of a segment's tree, for a backend that computes sequences: one down to each tip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.backends import Segment
from inference.errors import InvalidRequest
from inference.tree.token_tree import IntArray


class TreeLine(NamedTuple):
    """A chain of a segment's new nodes below what they all see."""

    nodes: NDArray[np.intp]  # [d] from the top down
    path: IntArray  # [c] slots that are seen, by position


def tips(segment: Segment) -> NDArray[np.intp]:
    """Return the new nodes that are leaves."""
    return np.flatnonzero(segment.tree_mask.sum(axis=0) == 1)


def path_of(positions: IntArray, seen: NDArray[np.bool_]) -> IntArray:
    """Return the slots that are seen, by position. seen: [S].

    positions: [S or more] of the row's slots

    Raises InvalidRequest unless the positions seen are 0 to their number - 1.
    """
    slots = np.flatnonzero(seen)
    held = positions[slots]
    order = held.argsort(kind="stable")
    if not np.array_equal(held[order], np.arange(len(slots))):
        raise InvalidRequest(
            f"this model needs one key at each position: {len(slots)} slots hold others"
        )
    return np.asarray(slots[order], dtype=np.int32)


def lines_of(segment: Segment, positions: IntArray) -> Iterator[TreeLine]:
    """Yield a segment's lines. positions: as for path_of.

    Raises InvalidRequest if a node's position is not the number of keys that it sees above it.
    """
    shared = segment.context.shape[0] == 1
    path = path_of(positions, segment.context[0]) if shared else None
    for tip in tips(segment).tolist():
        nodes = np.flatnonzero(segment.tree_mask[tip])
        nodes = nodes[segment.positions[nodes].argsort(kind="stable")]
        seen = path_of(positions, segment.context[tip]) if path is None else path
        expected = np.arange(len(seen), len(seen) + len(nodes))
        if not np.array_equal(segment.positions[nodes], expected) or (
            path is None and (segment.context[nodes] != segment.context[tip]).any()
        ):
            raise InvalidRequest("this model needs a tree whose nodes see all above them")
        yield TreeLine(nodes, seen)
