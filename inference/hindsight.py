"""What trees would have brought along the path that the target took lately, whatever their size. Pure.

How often the draft's first guess is right says too little about trees that follow confidence: they are deep where the text is easy and
small where it is hard. Here every position of the path is a round that could have begun there. The tree of that round holds all nodes
whose value (the product of chances down to them) is not below a least one. The path comes to a node of value v with probability v, so
that each one it came to stands for 1/v of its kind (importance sampling): one path tells how many nodes such trees have, and how often
the path stays inside.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEAST_VALUES = (0.5, 0.3, 0.2, 0.12, 0.07, 0.04, 0.02, 0.01, 0.005)
"""Of a node that is in the tree: a tree each."""

DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
"""That no node of a tree exceeds."""

LEAST_BETS = (0.3, 0.1, 0.03, 0.01)
"""Chances of an outcome that is still prepared for."""

_NEVER = 1e-9

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Hindsight:
    """t: one of LEAST_VALUES; d: one of DEPTHS; b: one of LEAST_BETS; l: level, the root's is 0."""

    levels: FloatArray  # [t, l] nodes on each level, on average, were no depth a limit
    inside: FloatArray  # [t, l] how often the path is inside the tree down to this level
    bets: FloatArray  # [t, d, b] outcomes that are as likely as that
    hits: FloatArray  # [t, d, b] how often one of them comes

    @staticmethod
    def to_depth(by_levels: FloatArray) -> FloatArray:  # [t, l] -> [t, d]
        """Sums over as many levels as each depth has."""
        return np.asarray(np.cumsum(by_levels, axis=1)[:, np.array(DEPTHS) - 1])


def look_back(chances: ArrayLike) -> Hindsight:
    """chances: [n] that the draft gave each token that was taken, one after the other; 0 for one that it did not name.

    The path is read as a circle. Raises ValueError for an empty path, or for what is no chance.
    """
    path = np.asarray(chances, dtype=np.float64)
    if path.ndim != 1 or not len(path) or not ((path >= 0) & (path <= 1)).all():
        raise ValueError("a path is a row of one or more chances between 0 and 1")
    deepest = max(DEPTHS)
    ahead = np.lib.stride_tricks.sliding_window_view(
        np.resize(path, len(path) + deepest), deepest + 1
    )[: len(path)]
    values = np.multiply.accumulate(ahead, axis=1)  # [n, deepest + 1]
    kinds = 1 / np.maximum(values, _NEVER)
    within = values[None, :, :deepest] >= np.array(LEAST_VALUES)[:, None, None]  # [t, n, deepest]
    root = np.ones((len(LEAST_VALUES), 1))
    levels = np.concatenate([root, (within * kinds[None, :, :deepest]).mean(axis=1)], axis=1)
    inside = np.concatenate([root, within.mean(axis=1)], axis=1)
    first_outside = np.minimum(
        within.sum(axis=2)[:, None, :], np.array(DEPTHS)[None, :, None]
    )  # [t, d, n]
    outcomes = values[np.arange(len(path))[None, None, :], first_outside]
    likely = outcomes[..., None] >= np.array(LEAST_BETS)  # [t, d, n, b]
    return Hindsight(
        levels,
        inside,
        (likely / np.maximum(outcomes, _NEVER)[..., None]).mean(axis=2),
        likely.mean(axis=2),
    )
