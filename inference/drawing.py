"""Drawing a draft tree at random, for acceptance by rejection: the randomness of a request, and trees that know what they were drawn from.

Siblings are drawn from the draft's distribution without replacement. All nodes of one depth share one draw of exponential clocks: a path
looks at one node of each depth, and which one that is depends on the positions before it only, so every draw that matters is fresh.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.policy import Edge
from inference.tree import IntArray, TokenTree

Distribution = NDArray[np.floating[Any]]
"""[V] probabilities of every token; they need not add up to exactly 1."""

Likely = Callable[[TokenTree, Sequence[int]], NDArray[np.floating[Any]]]
"""likely(tree, nodes) -> [m, V]: what the draft draws the children of these nodes from; every ancestor was asked about before."""


class Purpose(IntEnum):
    """What random numbers are for. No number serves two purposes: a verdict that reuses the drawing's chance is biased."""

    DRAWING = 0
    ACCEPTING = 1
    CORRECTING = 2


class Chance(NamedTuple):
    """The randomness of one request: numbers by absolute position and purpose, the same whenever they are asked for."""

    seed: int

    def uniforms(
        self, position: int, purpose: Purpose, count: int
    ) -> NDArray[np.float64]:  # [count]
        """Independent numbers, greater than 0 and less than 1: Philox-4x64 of (seed, purpose; position), 52 bits of each word."""
        key = np.array([self.seed, purpose], dtype=np.uint64)
        counter = np.array([0, position, 0, 0], dtype=np.uint64)
        words = np.random.Philox(key=key, counter=counter).random_raw(count)
        return np.asarray(((words >> np.uint64(12)) + 0.5) * 2.0**-52)


@dataclass(frozen=True, eq=False)
class DrawnTree(TokenTree):
    """A tree whose siblings were drawn without replacement and stand in the order of drawing.

    drawn_from: for every node with children, what they were drawn from. It stays in this process; a part of the tree is a plain
    TokenTree, which the target verifies by matching.
    """

    drawn_from: Mapping[int, Distribution]  # node -> [V]

    def children(self, node: int) -> IntArray:
        """The children of a node, in the order in which they were drawn."""
        return np.flatnonzero(self.parents == node).astype(np.int32)


def draw_tree(
    root: int, shape: Sequence[Edge], position: int, chance: Chance, likely: Likely
) -> DrawnTree:
    """A tree of this shape under `root`, where an edge's rank is the order of drawing; `position` is that of the root's children.

    A node with fewer possible children than the shape wants has those, and what the shape has below the others is left out. The shape
    must not depend on this round's chance.
    """
    tokens, parents, place = [root], [-1], {0: 0}  # place: node of the shape -> node of the tree
    drawn_from: dict[int, Distribution] = {}
    for depth, level in groupby(
        sorted(shape, key=lambda edge: edge.depth), key=lambda edge: edge.depth
    ):
        edges = [edge for edge in level if edge.parent in place]
        if not edges:
            break
        wanted = Counter(edge.parent for edge in edges)
        tree = TokenTree(np.array(tokens), np.array(parents))
        given = likely(tree, [place[parent] for parent in wanted])
        clocks = -np.log(chance.uniforms(position + depth - 1, Purpose.DRAWING, given.shape[-1]))
        drawn = {
            parent: draw(one, clocks, wanted[parent])
            for parent, one in zip(wanted, given, strict=True)
        }
        drawn_from |= {place[parent]: one for parent, one in zip(wanted, given, strict=True)}
        for edge in edges:
            if edge.rank < len(drawn[edge.parent]):
                place[edge.node] = len(tokens)
                tokens.append(int(drawn[edge.parent][edge.rank]))
                parents.append(place[edge.parent])
    return DrawnTree(np.array(tokens), np.array(parents), drawn_from)


def draw(
    distribution: Distribution, clocks: NDArray[np.float64], count: int
) -> IntArray:  # [V], [V] -> [at most count]
    """Tokens drawn one after the other, each in proportion to its probability among those left: the first clocks to ring.

    clocks: independent and exponential; that of a token runs at the rate of its probability. The order is that of log-probabilities
    with Gumbel noise.
    """
    possible = np.flatnonzero(distribution)
    rings = clocks[possible] / distribution[possible].astype(np.float64)
    count = min(count, len(possible))
    first = np.argpartition(rings, count - 1)[:count]
    return possible[first[np.argsort(rings[first])]].astype(np.int32)
