"""The shape of a tree that a graph drafts. Imports nothing, so that whoever only reads an
artefact's manifest stays light.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import mul

from inference.errors import InvalidRequest


@dataclass(frozen=True, order=True)
class Branches:
    """Every node of depth d has branches[d] children. A chain of n is n ones.

    Nodes are numbered level by level and the children of one node lie side by side, the likeliest
    first. So the nodes that have children come before those that have none, and the draft, which
    never looks at the deepest level, forwards a prefix of the tree.
    """

    branches: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.branches or min(self.branches) < 1:
            raise InvalidRequest(
                f"a drafted tree has at least one child a node on every level: got {self.branches}"
            )

    @classmethod
    def chain(cls, length: int) -> Branches:
        """Raises InvalidRequest for a length below 1."""
        return cls((1,) * length)

    @property
    def depth(self) -> int:
        return len(self.branches)

    @property
    def levels(self) -> tuple[int, ...]:
        """Nodes of each depth, from the root's 1 on."""
        return tuple(accumulate(self.branches, mul, initial=1))

    @property
    def nodes(self) -> int:
        """Of the tree, its root included."""
        return sum(self.levels)

    @property
    def inner(self) -> int:
        """Nodes with children, which the draft forwards."""
        return sum(self.levels[:-1])

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """Of each node; the root's is -1."""
        parents, first = [-1], 0
        for wide, branch in zip(self.levels, self.branches, strict=False):
            parents += [first + node for node in range(wide) for _ in range(branch)]
            first += wide
        return tuple(parents)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Of each node."""
        return tuple(depth for depth, wide in enumerate(self.levels) for _ in range(wide))

    def __str__(self) -> str:
        if max(self.branches) == 1:
            return f"chain of {self.depth}"
        return (
            f"tree of {self.nodes - 1} nodes ({', '.join(map(str, self.branches))} children a node)"
        )
