"""What copied text is worth: chances of tokens that followed the same words before.

Two laws are learnt from every verdict. One judges copied tokens by themselves: how long the matched
context is, and how often each token followed it. The other judges a node that a model has ranked,
too: it takes the model's chance and the copied one together. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from inference.json_file import Json
from inference.planner.law import FloatArray, Law, hazards, read_law

COPY_FEATURES = ("one", "length", "share", "count", "latest")
"""Features of a copied token: a constant, log(1 + length of the match), log odds of how often the
token followed, log(1 + times), and whether it followed last.
"""

JOINT_FEATURES = ("one", "model", "copied", "chance")
"""Features of a child that model or copies named: a constant, log odds of the model's chance,
whether it is copied, and log odds of its chance as a copy.
"""

_UNNAMED = 1e-3  # a model's chance for a copied token that it did not name
_LONGEST, _SPAN = 64, 8.0  # lengths and log odds beyond say no more
_SUREST = 0.999  # sum of a node's chances at most


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
    return min(max(math.log(chance / (1 - chance)), -_SPAN), _SPAN)


class Copying:
    """Chances of copied tokens.

    copies: the law of COPY_FEATURES, for the children of a node in order of frequency
    joint: the law of JOINT_FEATURES, for each child by itself
    """

    def __init__(self, copies: Law, joint: Law) -> None:
        self._copies, self._joint = copies, joint

    def chances(self, table: Sequence[Sequence[float]]) -> list[float]:  # [k, F] -> [k]
        """Return the probability that the target takes each copied token. Their sum is below 1."""
        weights, left, chances = self._copies.weights.tolist(), 1.0, list[float]()
        for row in table:  # plain numbers: a row is too short for an array
            odds = sum(weight * value for weight, value in zip(weights, row, strict=True))
            taken = left / (1 + math.exp(-min(max(odds, -_SPAN), _SPAN)))
            chances.append(taken)
            left -= taken
        return chances

    def observe(self, table: Sequence[Sequence[float]], taken: int | None) -> None:
        """Learn which of the copied tokens the target took, or that it took none."""
        reached = len(table) if taken is None else taken + 1
        hits = np.zeros(reached, dtype=np.bool_)
        if taken is not None:
            hits[taken] = True
        self._copies.learn(np.array(table[:reached]), hits)

    def together(self, table: FloatArray) -> FloatArray:  # [k, J] -> [k]
        """Return the probability of each child of a node that a model has ranked."""
        chances = hazards(table, self._joint.weights)
        return np.asarray(chances * min(_SUREST / float(chances.sum()), 1.0))

    def observe_together(self, table: FloatArray, taken: int | None) -> None:  # [k, J]
        """Learn which child the target took where both had named children."""
        hits = np.zeros(len(table), dtype=np.bool_)
        if taken is not None:
            hits[taken] = True
        self._joint.learn(table, hits)

    def to_record(self) -> dict[str, Any]:
        """Return what was learnt, as a prior for other sessions."""
        return {"copies": self._copies.to_record(), "joint": self._joint.to_record()}

    @classmethod
    def read(cls, record: Json) -> Copying:
        """Read what to_record() described. Raises InvalidRequest."""
        return cls(
            read_law(record.field("copies"), len(COPY_FEATURES)),
            read_law(record.field("joint"), len(JOINT_FEATURES)),
        )


def joint_features(
    model: Mapping[int, float], copied: Mapping[int, float]
) -> tuple[list[int], FloatArray]:  # [k], [k, J]
    """Return all tokens that either named, and their JOINT_FEATURES.

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
