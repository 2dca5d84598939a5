"""A logistic law of which child the target takes, and rates, learnt from verdicts.

A verdict moves a law's weights by a Newton step. Old evidence fades towards a prior. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inference.errors import InvalidRequest
from inference.planner.child_features import FloatArray

MEMORY = 200
"""Verdicts after which evidence has faded to 1/e of its weight."""

FADING = 1 - 1 / MEMORY
"""Weight that evidence keeps after one more verdict."""

CERTAINTY = 60
"""Verdicts that a saved law counts for at most, so that the next session can still change it."""

STEEPEST = 12.0
"""Largest absolute log odds of a child."""

Rows: TypeAlias = Sequence[Sequence[float]]
"""Features of one node's children [k, F], as plain numbers: too short for an array."""


class Law:
    """A logistic law: weights of the features and their precision, as a prior and as learnt.

    precision: inverse of the weights' covariance
    worth: number of verdicts that the prior stands for
    Raises InvalidRequest for numbers that are no prior.
    """

    def __init__(self, weights: ArrayLike, precision: ArrayLike, worth: float) -> None:
        self._mean = np.array(weights, dtype=np.float64)
        self._certainty, self._worth = np.array(precision, dtype=np.float64), float(worth)
        width = len(self._mean)
        if self._mean.shape != (width,) or self._certainty.shape != (width, width):
            raise InvalidRequest(
                f"a law has a row of weights and a square of precisions as wide: got "
                f"{self._mean.shape} and {self._certainty.shape}"
            )
        sound = (
            np.isfinite(self._mean).all()
            and np.isfinite(self._certainty).all()
            and np.array_equal(self._certainty, self._certainty.T)
        )
        if (
            not sound
            or np.linalg.eigvalsh(self._certainty).min() <= 0
            or not 0 < self._worth < math.inf
        ):
            raise InvalidRequest(
                "a law needs finite weights, a symmetric and positive definite precision and a "
                "positive worth"
            )
        self.weights, self._moved = self._mean, np.zeros(width)  # [F]
        self._evidence, self._verdicts = np.zeros((width, width)), 0.0  # beyond the prior's

    def learn(self, table: FloatArray, taken: NDArray[np.bool_], verdicts: int = 1) -> None:
        """Learn from verdicts: children reached [n, F], in order, and which were taken [n]."""
        chance, fading = hazards(table, self.weights), FADING**verdicts
        self._evidence = (
            fading * self._evidence + (table * (chance * (1 - chance))[:, None]).T @ table
        )
        self._verdicts = fading * self._verdicts + verdicts
        # Forgotten evidence no longer holds the weights away from the prior's.
        faded = (1 - fading) * (self._certainty @ self._moved)
        self._moved = self._moved - np.linalg.solve(
            self._certainty + self._evidence, faded + (chance - taken) @ table
        )
        self.weights = self._mean + self._moved

    def observe(self, rows: Rows | FloatArray, taken: int | None) -> None:  # [k, F]
        """Learn which of a node's children was taken, or that none was."""
        reached = len(rows) if taken is None else taken + 1
        self.learn(np.array(rows[:reached]), np.arange(reached) == taken)

    def chances(self, rows: Rows, steepest: float) -> list[float]:  # [k, F] -> [k]
        """Return the probability of each of a node's children. Their sum is below 1.

        steepest: largest absolute log odds
        """
        weights, left, chances = self.weights.tolist(), 1.0, list[float]()
        for row in rows:
            odds = sum(weight * value for weight, value in zip(weights, row, strict=True))
            taken = left / (1 + math.exp(-min(max(odds, -steepest), steepest)))
            chances.append(taken)
            left -= taken
        return chances

    def to_record(self) -> dict[str, Any]:
        """Return this law as a prior."""
        worth = self._worth + self._verdicts
        share = min(1.0, CERTAINTY / worth)
        precision = self._certainty + (self._evidence + self._evidence.T) / 2
        return {
            "weights": self.weights.tolist(),
            "precision": (share * precision).tolist(),
            "worth": share * worth,
        }


def hazards(table: FloatArray, weights: FloatArray) -> FloatArray:  # [..., F], [F] -> [...]
    """Return the probability that a child is taken, given that none before it is."""
    odds = np.minimum(np.maximum(table @ weights, -STEEPEST), STEEPEST)
    return np.asarray(1 / (1 + np.exp(-odds)))


def broken(sticks: FloatArray) -> FloatArray:  # [..., k] -> [..., k]
    """Return probabilities of the ranks from their hazards (stick breaking). Their sum is below
    1.
    """
    left = np.multiply.accumulate(1 - sticks, axis=-1)
    sticks = sticks.copy()
    sticks[..., 1:] *= left[..., :-1]
    return sticks


class HitRates:
    """HitRates of what was tried, whatever its score: hits / tries, fading to the prior's.

    Raises InvalidRequest unless there are so many of each, with 0 < hits < tries.
    """

    def __init__(self, tries: ArrayLike, hits: ArrayLike, count: int) -> None:
        self.tries, self.hits = np.array(tries, dtype=np.float64), np.array(hits, dtype=np.float64)
        if self.tries.shape != (count,) or self.hits.shape != (count,):
            raise InvalidRequest(
                f"there are {count} rates: got {self.tries.shape} tries and {self.hits.shape} hits"
            )
        if not (
            np.isfinite(self.tries).all()
            and (self.hits > 0).all()
            and (self.hits < self.tries).all()
        ):
            raise InvalidRequest("each rate's hits must lie between 0 and its tries")
        self._prior = self.tries.copy(), self.hits.copy()

    def learn(self, tried: slice, hit: int | None, faded: slice = slice(None)) -> None:
        """Learn one verdict: what was tried, and what of it was a hit.

        faded: rates whose older evidence counts for less now
        """
        for kept, prior in zip((self.tries, self.hits), self._prior, strict=True):
            kept[faded] += (1 - FADING) * (prior[faded] - kept[faded])
        self.tries[tried] += 1
        if hit is not None and hit < len(self.hits):
            self.hits[hit] += 1

    def to_record(self, worth: ArrayLike) -> dict[str, Any]:
        """Return these rates as a prior. worth: part of the evidence that it stands for"""
        shares = np.minimum(1.0, worth)
        return {"tries": (shares * self.tries).tolist(), "hits": (shares * self.hits).tolist()}
