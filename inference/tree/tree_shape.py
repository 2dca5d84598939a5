"""The fixed shape of a tree that a compiled graph drafts.

The module imports no array library, so that reading an artefact's manifest is cheap.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import mul

from inference.errors import InvalidRequest

NONE = -1
"""Marks depths below the last accepted node."""


@dataclass(frozen=True, order=True)
class Branches:
    """A tree shape: every node at depth d has branches[d] children.

    Nodes are numbered level by level. The children of a node are adjacent, the most likely first.
    The draft never computes the deepest level, so the nodes that it computes are a prefix of the
    tree. Raises InvalidRequest for a level without children.
    """

    branches: tuple[int, ...]  # children of a node, by depth; n ones for a chain of n

    def __post_init__(self) -> None:
        if not self.branches or min(self.branches) < 1:
            raise InvalidRequest(
                f"a drafted tree needs at least one child a node on each level: got {self.branches}"
            )

    @classmethod
    def chain(cls, length: int) -> Branches:
        """Return a chain of `length` nodes below the root. Raises InvalidRequest below 1."""
        return cls((1,) * length)

    @property
    def depth(self) -> int:
        """Number of levels below the root."""
        return len(self.branches)

    @property
    def levels(self) -> tuple[int, ...]:
        """[depth + 1] number of nodes at each depth, beginning with 1 for the root."""
        return tuple(accumulate(self.branches, mul, initial=1))

    @property
    def nodes(self) -> int:
        """Number of nodes of the tree, the root included."""
        return sum(self.levels)

    @property
    def inner(self) -> int:
        """Number of nodes with children, which the draft computes."""
        return sum(self.levels[:-1])

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """[nodes] index of each node's parent; the root's is -1."""
        parents, first = [-1], 0
        for wide, branch in zip(self.levels, self.branches, strict=False):
            parents += [first + node for node in range(wide) for _ in range(branch)]
            first += wide
        return tuple(parents)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """[nodes] depth of each node; the root's is 0."""
        return tuple(depth for depth, wide in enumerate(self.levels) for _ in range(wide))

    def __str__(self) -> str:
        if max(self.branches) == 1:
            return f"chain of {self.depth}"
        return (
            f"tree of {self.nodes - 1} nodes ({', '.join(map(str, self.branches))} children a node)"
        )
