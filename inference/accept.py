"""Acceptance: which candidates of a tree the target keeps, and the token that it adds.

The target chooses a token at every node, and the tree is looked up for it. The output is exact for
any tree, proposer, policy or network: the target's token at a node never depends on the candidates.
"""

from __future__ import annotations

from typing import NamedTuple

from inference.tree import IntArray, TokenTree


class Verdict(NamedTuple):
    """The tokens that one forward commits: the accepted path, then the target's own token."""

    path: tuple[int, ...]  # accepted nodes below the root, from the top
    next_token: int  # the target's choice at the last node of the path


def accept_match(tree: TokenTree, chosen: IntArray) -> Verdict:
    """Walk from the root while the token chosen at a node is one of its children.

    chosen: [n] the target's token at each node of the tree.
    """
    node, path, wanted = 0, list[int](), chosen.tolist()
    nodes = zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)
    for child, (parent, token) in enumerate(nodes):
        if parent == node and token == wanted[node]:  # children stand after their parent
            node = child
            path.append(node)
    return Verdict(tuple(path), wanted[node])
