"""Trees of a fixed shape that the target's own graph drafts.

Their tokens come back with the verdict.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.accept import Verdict
from inference.tree import IntArray, TokenTree
from inference.tree_shape import NONE, Branches


@lru_cache(maxsize=16)
def blank_tree(shape: Branches) -> TokenTree:
    """A tree of the given shape with placeholder tokens."""
    return TokenTree(_unknown(0, shape.nodes), np.array(shape.parents, dtype=np.int32))


def inner_tree(shape: Branches, root: int) -> TokenTree:
    """The nodes that the draft forwards, with placeholder tokens below the root."""
    return TokenTree(
        _unknown(root, shape.inner), np.array(shape.parents[: shape.inner], dtype=np.int32)
    )


class GraphTree(TokenTree):
    """A tree under `root` that is drafted and verified in one call.

    Its tokens below the root are placeholders until filled().

    limit: candidates accepted at most; deeper nodes are computed at this depth.
    draft: the draft's segment of the call (inference.backends.Segment, which is not imported here).
    """

    def __init__(self, shape: Branches, root: int, limit: int, draft: Any) -> None:
        super().__init__(_unknown(root, shape.nodes), np.array(shape.parents, dtype=np.int32))
        self.__dict__.update(shape=shape, limit=limit, draft=draft)

    shape: Branches
    limit: int
    draft: Any

    @cached_property
    def depths(self) -> IntArray:  # [n]
        """Depth of each node, at most `limit`, so that no position lies beyond the text's end."""
        return np.minimum(np.array(self.shape.depths, dtype=np.int32), self.limit)

    def filled(self, answer: NDArray[Any]) -> Verdict:
        """Take the drafted tokens from the graph's answer; returns the verdict, cut to the limit.

        answer: [nodes - 1 + depth + 1] int32. It holds the drafted tokens, the accepted node of
        each depth (or NONE), and the target's token after them. Raises InvalidRequest when
        siblings carry equal tokens.
        """
        drafted, path, next_token = np.split(answer, [len(self) - 1, len(answer) - 1])
        tokens = TokenTree(
            np.concatenate([self.tokens[:1], drafted.astype(np.int32)]), self.parents
        ).tokens  # checked: siblings are distinct
        self.__dict__.pop("_children", None)
        self.__dict__.update(tokens=tokens)
        accepted = tuple(int(node) for node in path if node != NONE)
        if len(accepted) > self.limit:
            return Verdict(accepted[: self.limit], int(tokens[accepted[self.limit]]))
        return Verdict(accepted, int(next_token[0]))


def _unknown(root: int, nodes: int) -> IntArray:
    """Placeholder tokens below the root, distinct because siblings must be."""
    tokens = np.arange(nodes, dtype=np.int32)
    tokens[0] = root
    return tokens
