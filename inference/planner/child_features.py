"""Features of a node's children, by their source: ranks, copied text, masks, or two of these.

A logistic model (Law in inference/planner/acceptance.py) takes a row of features for each child, in
the order in which the source proposes them. Pure.
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
"""Features of a copied token: a constant, log(1 + length of the match), log odds of how often the
token followed, log(1 + times), and whether it followed last.
"""

JOINT_FEATURES = ("one", "model", "copied", "chance")
"""Features of a child that model or copies proposed: a constant, log odds of the model's chance,
whether it is copied, and log odds of its chance as a copy.
"""

MASK_FEATURES = (*RANK_FEATURES[:-1], "offset", "path", "path_odds", "again")
"""Features of a child that a mask proposes. Those of a ranked child but for its depth; then the
mask's offset, how surprising the path from the known token is, that times the odds, and whether the
child repeats the token before it.
"""

SCORED = len(RANK_FEATURES) - 1
"""Number of these that depend on the mask's scores only. They come first."""

EXCLUDED = -1e8  # a score below: top-k or top-p excludes this token
SPAN = 8.0  # bound of log odds and of distances in scores
_UNSEEN = 1e-4  # minimum mass of the tokens below those that were ranked greedily
_FOLLOWING = 1.5  # number of perturbed scores like the next one that follow the last
_STEP = 2.0  # distance of that next one, in e**-score
_MIN_SCORE, _MAX_SCORE = -40.0, 20.0  # of log-probabilities plus noise, unless excluded
_MAX_DEPTH = 8  # bound of depths and offsets
_MAX_SURPRISE = 8.0  # bound of the negative logarithm of a path's chance
_MAX_MATCH = 64  # bound of a match's length
_UNPROPOSED = 1e-3  # a model's chance for a copied token that it did not propose


def rank_features(
    scores: ArrayLike, depths: ArrayLike, greedy: bool
) -> FloatArray:  # [m, k], [m] -> [m, k, F]
    """Return the RANK_FEATURES of each child of m nodes.

    odds: log odds against all later tokens; their mass beyond rank k is known (greedy) or estimated
    behind: distance of the child's score to the first child's
    entropy: of the row, in nats
    first, rank: whether it is the first child, and log(1 + rank)
    depth: of the node
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
    left = np.add.accumulate(mass[:, ::-1], axis=1)[:, ::-1]
    share = mass / left[:, :1]
    table = np.empty((*bounded.shape, len(RANK_FEATURES)))
    table[..., 0] = 1
    table[..., 1] = np.minimum(np.maximum(np.log(mass[:, :-1] / left[:, 1:]), -SPAN), SPAN)
    table[..., 2] = np.minimum(bounded[:, :1] - bounded, SPAN)
    table[..., 3] = -(share * np.log(share)).sum(axis=1)[:, None]
    table[..., 4] = 0
    table[:, 0, 4] = 1
    table[..., 5] = np.log1p(np.arange(bounded.shape[1]))
    table[..., 6] = np.minimum(depths, _MAX_DEPTH)[:, None] / _MAX_DEPTH
    return table


class Following(NamedTuple):
    """A token that followed a context before.

    times: how often it followed
    others: how often tokens followed that are less frequent
    latest: whether it followed when the context occurred last
    """

    token: int
    times: int
    others: int
    latest: bool


def copy_features(length: int, following: Sequence[Following]) -> list[list[float]]:  # [k, F]
    """Return the COPY_FEATURES of tokens that followed a context of `length` tokens, the most
    frequent first.
    """
    match = math.log1p(min(length, _MAX_MATCH))
    return [
        [1.0, match, math.log((times + 0.5) / (others + 0.5)), math.log1p(times), float(latest)]
        for _, times, others, latest in following
    ]


def log_odds(chance: float) -> float:
    """Return the log odds of a probability, bounded."""
    chance = min(max(chance, 1e-12), 1 - 1e-12)
    return min(max(math.log(chance / (1 - chance)), -SPAN), SPAN)


def joint_features(
    model: Mapping[int, float], copied: Mapping[int, float]
) -> tuple[list[int], FloatArray]:  # [k], [k, J]
    """Return all tokens that either proposed, and their JOINT_FEATURES.

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


def mask_features(
    scored: Sequence[Sequence[float]], offset: int, path: float, again: int | None
) -> list[list[float]]:  # [k, SCORED] -> [k, F]
    """Return the MASK_FEATURES of a mask's children.

    scored: score_part() of the children
    offset: positions between the known token and the mask, from 1
    path: negative logarithm of the path's chance, from the known token to this node
    again: index of the child that repeats the node's own token; None for none
    """
    far = min(offset, _MAX_DEPTH) / _MAX_DEPTH
    surprise = min(path, _MAX_SURPRISE) / _MAX_SURPRISE
    return [
        [*row, far, surprise, surprise * row[1], float(rank == again)]
        for rank, row in enumerate(scored)
    ]


def score_part(table: FloatArray) -> list[list[float]]:  # [k, >= SCORED] -> [k, SCORED]
    """Return the SCORED features of a mask's children, of the table of rank_features()."""
    scored: list[list[float]] = table[:, :SCORED].tolist()
    return scored
