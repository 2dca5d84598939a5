"""Acceptance: what of a draft tree the target keeps, and the token that it adds.

The target chooses, the tree is looked up. Exact for any tree, proposer, policy or network, because
the target's token at a node never depends on what was proposed.
"""

from __future__ import annotations

from typing import NamedTuple

from inference.tree import IntArray, TokenTree


class Verdict(NamedTuple):
    """What a round commits: the accepted nodes below the root, then one token of the target's
    own.
    """

    path: tuple[int, ...]
    next_token: int


def accept_match(tree: TokenTree, chosen: IntArray) -> Verdict:
    """Walk from the root while the token chosen at a node is one of its children.  chosen: [n]"""
    node, path = 0, []
    if len(tree) > 1:
        parents = tree.parents[1:]
        matching = (tree.tokens[1:] == chosen[parents]).nonzero()[0]
        for child, parent in zip(matching.tolist(), parents[matching].tolist(), strict=True):
            if parent == node:  # at most one: siblings are distinct, and stand after their parent
                node = child + 1
                path.append(node)
    return Verdict(tuple(path), int(chosen[node]))
