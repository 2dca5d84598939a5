"""Acceptance: what of a draft tree the target keeps, and the token that it adds.

accept_match: the target chooses, the tree is looked up. Exact for any tree, drafter, policy or network, because the target's token at a
node never depends on what was drafted. accept_rejection: the draft's draws are corrected to the target's distribution, for trees drawn
at random in the same process.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.drawing import Chance, Distribution, DrawnTree, Purpose
from inference.tree import IntArray, TokenTree


class Verdict(NamedTuple):
    """What a round commits: the accepted nodes below the root, then one token of the target's own."""

    path: tuple[int, ...]
    next_token: int


def accept_match(tree: TokenTree, chosen: IntArray) -> Verdict:
    """Walk from the root while the token chosen at a node is one of its children.  chosen: [n]"""
    node, path = 0, []
    while (child := tree.child(node, int(chosen[node]))) is not None:
        path.append(child)
        node = child
    return Verdict(tuple(path), int(chosen[node]))


def accept_rejection(
    tree: DrawnTree, target: NDArray[np.floating[Any]], position: int, chance: Chance
) -> Verdict:
    """Recursive rejection sampling: tokens distributed as the target's own, though not the ones that its seeded decoding makes.

    target: [n, V] its probabilities at every node; position: that of the root's children.  `chance` must be the request's own, as
    in the drawing: at each position the numbers for drawing, accepting and correcting are independent.
    """
    path: list[int] = []
    node = 0
    while True:
        child, left = _first_accepted(tree, node, _normalised(target[node]), chance, position)
        if child is None:
            return Verdict(
                tuple(path), _pick(left, float(chance.uniforms(position, Purpose.CORRECTING, 1)[0]))
            )
        path.append(child)
        node, position = child, position + 1


def residual(target: Distribution, draft: Distribution) -> Distribution:  # [V], [V] -> [V]
    """What is left to be drawn from once a token drawn from `draft` was rejected. Both are normalised, and so is the result."""
    left = np.maximum(target - draft, 0.0)
    return (
        _normalised(left) if left.any() else target
    )  # equal but for rounding: nothing is rejected then


def _first_accepted(
    tree: DrawnTree, node: int, target: Distribution, chance: Chance, position: int
) -> tuple[int | None, Distribution]:
    """The first child that is accepted, if any, and the distribution that is left to the target when none is."""
    children = tree.children(node)
    if not children.size:
        return None, target
    draft = _normalised(tree.drawn_from[node])
    uniforms = chance.uniforms(position, Purpose.ACCEPTING, len(children))
    for child, uniform in zip(children.tolist(), uniforms.tolist(), strict=True):
        token = tree.tokens[child]
        if uniform * draft[token] < target[token]:
            return child, target
        target = residual(target, draft)
        draft[token] = 0.0
        draft = _normalised(draft) if draft.any() else draft
    return None, target


def _normalised(weights: Distribution) -> NDArray[np.float64]:
    exact = weights.astype(np.float64)
    return np.asarray(exact / exact.sum())


def _pick(distribution: Distribution, uniform: float) -> int:
    """The token at which the cumulative probability passes `uniform`."""
    mass = np.cumsum(distribution)
    return int(np.searchsorted(mass, uniform * mass[-1], side="right"))
