"""Features of a node's children, for each source: a draft's ranks, copied text, or both. A Law
(inference/planner/acceptance.py) takes a row of features for each child, in the source's order.
Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray: TypeAlias = NDArray[np.float64]

RANK_FEATURES = ("one", "odds", "behind", "entropy", "first", "rank", "depth")

COPY_FEATURES = ("one", "length", "share", "count", "latest")
"""Features of a copied token: a constant, log(1 + length of the match), log odds that the token
followed, log(1 + times that it followed), and whether it followed last.
"""

JOINT_FEATURES = ("one", "model", "copied", "chance")
"""Features of a child that model or copies proposed: a constant, log odds by the model, whether the
child is copied, and log odds as a copy.
"""

EXCLUDED = -1e8  # lower scores mark tokens that top-k or top-p excludes
SPAN = 8.0  # maximum absolute log odds, and maximum distance in scores
_UNSEEN = 1e-4  # minimum probability mass of the unranked tokens, in greedy decoding
_FOLLOWING = 1.5  # unranked tokens count as this many perturbed scores like the next one
_STEP = 2.0  # distance of that next score from the last ranked one, in e**-score
_MIN_SCORE, _MAX_SCORE = -40.0, 20.0  # of log-probabilities plus noise, unless excluded
_MAX_DEPTH = 8  # greater depths count as this one
_MAX_MATCH = 64  # longer matches count as this one
_UNPROPOSED = 1e-3  # assumed probability, by a model, of a copied token that it did not propose


def rank_features(
    scores: ArrayLike, depths: ArrayLike, greedy: bool
) -> FloatArray:  # [m, k], [m] -> [m, k, F]
    """Return the RANK_FEATURES of each child of m nodes.

    odds: log odds against all later tokens; the mass beyond rank k is known (greedy) or estimated
    behind: distance of the child's score from the first child's
    entropy: entropy of the row, in nats
    first, rank: whether the child is the first, and log(1 + its rank)
    depth: depth of the node
    """
    bounded = np.fmin(np.fmax(np.asarray(scores, dtype=np.float64), _MIN_SCORE), _MAX_SCORE)
    mass = np.empty((bounded.shape[0], bounded.shape[1] + 1))
    np.exp(bounded, out=mass[:, :-1])
    if greedy:
        mass[:, -1] = np.maximum(1 - mass[:, :-1].sum(axis=1), _UNSEEN)
    # Perturbed scores are a Gumbel process: from one rank to the next, e**-score grows on average
    # by 1 / (probability of the remaining tokens).
    else:
        mass[:, -1] = _FOLLOWING / (np.exp(-bounded[:, -1]) + _STEP)
    tails = np.add.accumulate(mass[:, ::-1], axis=1)[:, ::-1]
    share = mass / tails[:, :1]
    table = np.empty((*bounded.shape, len(RANK_FEATURES)))
    table[..., 0] = 1
    table[..., 1] = np.minimum(np.maximum(np.log(mass[:, :-1] / tails[:, 1:]), -SPAN), SPAN)
    table[..., 2] = np.minimum(bounded[:, :1] - bounded, SPAN)
    table[..., 3] = -(share * np.log(share)).sum(axis=1)[:, None]
    table[..., 4] = 0
    table[:, 0, 4] = 1
    table[..., 5] = np.log1p(np.arange(bounded.shape[1]))
    table[..., 6] = np.minimum(depths, _MAX_DEPTH)[:, None] / _MAX_DEPTH
    return table


class Following(NamedTuple):
    """A token that followed a context before.

    times: how often the token followed
    rarer: how often less frequent tokens followed
    latest: whether the token followed when the context last occurred
    """

    token: int
    times: int
    rarer: int
    latest: bool


def copy_features(length: int, following: Sequence[Following]) -> list[list[float]]:  # [k, F]
    """Return the COPY_FEATURES of tokens that followed a context of `length` tokens, the most
    frequent first.
    """
    match = math.log1p(min(length, _MAX_MATCH))
    return [
        [1.0, match, math.log((times + 0.5) / (rarer + 0.5)), math.log1p(times), float(latest)]
        for _, times, rarer, latest in following
    ]


def log_odds(chance: float) -> float:
    """Return the log odds of a probability, bounded."""
    chance = min(max(chance, 1e-12), 1 - 1e-12)
    return min(max(math.log(chance / (1 - chance)), -SPAN), SPAN)


def joint_features(
    model: Mapping[int, float], copied: Mapping[int, float]
) -> tuple[list[int], FloatArray]:  # [k], [k, J]
    """Return all tokens that either source proposed, and their JOINT_FEATURES.

    model, copied: token -> probability
    """
    tokens = list(dict.fromkeys([*model, *copied]))
    table = np.zeros((len(tokens), len(JOINT_FEATURES)))
    table[:, 0] = 1
    for row, token in zip(table, tokens, strict=True):
        row[1] = log_odds(model.get(token, _UNPROPOSED))
        if token in copied:
            row[2:] = 1, log_odds(copied[token])
    return tokens, table
