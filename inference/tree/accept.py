"""Acceptance: which candidates of a tree the target accepts, and the token that it adds.

The target chooses a token at every node, and a walk follows these choices down the tree. The output
is exact for any tree, proposer, policy or network, because the target's choice at a node depends
only on the tokens before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from inference.tree.token_tree import IntArray, TokenTree


class Verdict(NamedTuple):
    """The tokens that one forward pass commits: the accepted path, then the target's own token."""

    path: tuple[int, ...]  # accepted nodes below the root, from the top
    next_token: int  # the target's choice at the last node of the path


def accept_matches(trees: Sequence[TokenTree], chosen: Sequence[IntArray]) -> list[Verdict]:
    """Return the verdict on each tree: walk down from the root while the chosen token is a child.
    All walks are computed at once, since a forward pass has many sessions.

    chosen: [trees] the target's choice at each node of the tree, [n].
    """
    tokens, choices = np.concatenate([tree.tokens for tree in trees]), np.concatenate(chosen)
    sizes = np.array([len(tree.tokens) for tree in trees])
    roots = sizes.cumsum() - sizes  # [trees] indices in the arrays of all nodes
    above = np.concatenate([tree.parents for tree in trees]) + roots.repeat(sizes)
    above[roots] = roots
    met = tokens == choices[above]  # the target chose the node, if its walk reached the parent
    met[roots] = True
    while True:  # `above` looks twice as far up in each iteration
        met &= met[above]
        further = above[above]
        if np.array_equal(further, above):
            break
        above = further
    nodes = met.nonzero()[0]  # one walk after another, each in order: children follow parents
    begins = np.searchsorted(nodes, roots)
    ends = np.append(begins[1:], len(nodes))
    walked = (nodes - roots.repeat(ends - begins)).tolist()
    last = choices[nodes[ends - 1]].tolist()
    bounds = zip(begins.tolist(), ends.tolist(), last, strict=True)
    return [Verdict(tuple(walked[begin + 1 : end]), token) for begin, end, token in bounds]
