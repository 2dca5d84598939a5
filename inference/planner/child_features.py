"""Features of a node's children, by their proposer: ranks, copied text, masks, or two of these.

A law (inference/planner/acceptance.py) reads a row of features for each child, in the order in
which the source proposes them. Pure.
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
"""Features of a child that a mask names. Those of a ranked child but for its depth; then the mask's
offset, how surprising the path from the known token is, that times the odds, and whether the child
repeats the token before it.
"""

SAID = len(RANK_FEATURES) - 1
"""Number of these that depend on the mask's scores only. They come first."""

EXCLUDED = -1e8  # a score below: top-k or top-p excludes this token
SPAN = 8.0  # log odds and distances in scores beyond this are as good as certain
_UNSEEN = 1e-4  # minimum mass of the tokens below those that were ranked greedily
_FOLLOWING = 1.5  # how many more perturbed scores like the next one lie beyond the last
_STEP = 2.0  # distance of that next one, in e**-score
_LEAST, _MOST = -40.0, 20.0  # log-probabilities plus noise lie between; excluded tokens do not
_DEEP = 8  # depths and offsets beyond say no more
_SURPRISE = 8.0  # negative logarithms of a path's chance beyond say no more
_LONGEST = 64  # lengths of a match beyond say no more
_UNNAMED = 1e-3  # a model's chance for a copied token that it did not propose


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
    found = np.fmin(np.fmax(np.asarray(scores, dtype=np.float64), _LEAST), _MOST)
    mass = np.empty((found.shape[0], found.shape[1] + 1))
    np.exp(found, out=mass[:, :-1])
    if greedy:
        mass[:, -1] = np.maximum(1 - mass[:, :-1].sum(axis=1), _UNSEEN)
    # Perturbed scores are a Gumbel process: from one rank to the next, e**-score grows on average
    # by 1 / (probability of the remaining tokens).
    else:
        mass[:, -1] = _FOLLOWING / (np.exp(-found[:, -1]) + _STEP)
    left = np.add.accumulate(mass[:, ::-1], axis=1)[:, ::-1]
    share = mass / left[:, :1]
    table = np.empty((*found.shape, len(RANK_FEATURES)))
    table[..., 0] = 1
    table[..., 1] = np.minimum(np.maximum(np.log(mass[:, :-1] / left[:, 1:]), -SPAN), SPAN)
    table[..., 2] = np.minimum(found[:, :1] - found, SPAN)
    table[..., 3] = -(share * np.log(share)).sum(axis=1)[:, None]
    table[..., 4] = 0
    table[:, 0, 4] = 1
    table[..., 5] = np.log1p(np.arange(found.shape[1]))
    table[..., 6] = np.minimum(depths, _DEEP)[:, None] / _DEEP
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
    known = math.log1p(min(length, _LONGEST))
    return [
        [1.0, known, _odds_of(one.times, one.others), math.log1p(one.times), float(one.latest)]
        for one in following
    ]


def _odds_of(count: float, others: float) -> float:
    return math.log((count + 0.5) / (others + 0.5))


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
        row[1] = log_odds(model.get(token, _UNNAMED))
        if token in copied:
            row[2:] = 1, log_odds(copied[token])
    return tokens, table


def mask_features(
    said: Sequence[Sequence[float]], offset: int, path: float, again: int | None
) -> list[list[float]]:  # [k, SAID] -> [k, F]
    """Return the MASK_FEATURES of a mask's children.

    offset: positions between the known token and the mask, from 1
    path: negative logarithm of the path's chance, from the known token to this node
    again: which child repeats the node's own token, if one does
    """
    far, surprise = min(offset, _DEEP) / _DEEP, min(path, _SURPRISE) / _SURPRISE
    return [
        [*row, far, surprise, surprise * row[1], float(rank == again)]
        for rank, row in enumerate(said)
    ]


def said_by(table: FloatArray) -> list[list[float]]:  # [k, >= SAID] -> [k, SAID]
    """Return the SAID features of a mask's children, from the features of ranked children."""
    said: list[list[float]] = table[:, :SAID].tolist()
    return said
