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
    while (child := tree.child(node, int(chosen[node]))) is not None:
        path.append(child)
        node = child
    return Verdict(tuple(path), int(chosen[node]))
