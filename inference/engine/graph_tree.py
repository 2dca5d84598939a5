"""Trees of a fixed shape that the target's own graph drafts, verifies and accepts in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.accept import Verdict
from inference.tree import TokenTree
from inference.tree_shape import NONE, Branches


def blank_tree(shape: Branches, root: int = 0) -> TokenTree:
    """A tree of the shape before it is drafted: every token below the root is a placeholder."""
    tokens = np.arange(shape.nodes, dtype=np.int32)  # distinct, because siblings must be
    tokens[0] = root
    return TokenTree(tokens, np.array(shape.parents, dtype=np.int32))


def read_answer(asked: TokenTree, answer: NDArray[Any], limit: int) -> tuple[TokenTree, Verdict]:
    """Return the tree that a graph drafted, and the verdict on it, cut to the limit.

    asked: the tree as the graph was asked for it, by blank_tree()
    answer: [nodes - 1 + depth + 1] int32. It holds the drafted tokens, the accepted node of each
        depth (or NONE), and the target's token after them.
    limit: candidates accepted at most

    Raises InvalidRequest when siblings carry equal tokens.
    """
    drafted, path, next_token = np.split(answer, [len(asked) - 1, len(answer) - 1])
    tokens = np.concatenate([asked.tokens[:1], drafted.astype(np.int32)])
    tree = TokenTree(tokens, asked.parents)
    accepted = tuple(int(node) for node in path if node != NONE)
    if len(accepted) > limit:
        return tree, Verdict(accepted[:limit], int(tokens[accepted[limit]]))
    return tree, Verdict(accepted, int(next_token[0]))
