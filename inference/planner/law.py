"""A logistic law of which child the target takes, learnt from every verdict.

A verdict moves the weights by a Newton step. Old evidence fades towards a prior. Pure.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inference.errors import InvalidRequest
from inference.json_file import Json

MEMORY = 200
"""Verdicts after which evidence has faded to 1/e of its weight."""

CERTAINTY = 60
"""Verdicts that a saved record counts for at most, so that the next session can still change it."""

FADING = 1 - 1 / MEMORY
"""Weight that evidence keeps after one more verdict."""

_STEEPEST = 12.0  # largest absolute log odds of a hazard

FloatArray = NDArray[np.float64]


def hazards(table: FloatArray, weights: FloatArray) -> FloatArray:  # [..., F], [F] -> [...]
    """Probability that a child is taken, given that none before it is."""
    odds = np.minimum(np.maximum(table @ weights, -_STEEPEST), _STEEPEST)
    return np.asarray(1 / (1 + np.exp(-odds)))


def broken(sticks: FloatArray) -> FloatArray:  # [..., k] -> [..., k]
    """Probabilities of the ranks from their hazards (stick breaking); their sum is below 1."""
    left = np.multiply.accumulate(1 - sticks, axis=-1)
    sticks = sticks.copy()
    sticks[..., 1:] *= left[..., :-1]
    return sticks


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


def read_law(raw: Json, width: int) -> Law:
    """Read what Law.to_record() described, of this many features. Raises InvalidRequest."""
    weights, precision = raw.field("weights"), raw.field("precision").each(read_numbers)
    if len(read_numbers(weights)) != width:
        weights.refuse(f"{width} numbers")
    if any(len(row) != width for row in precision) or len(precision) != width:
        raw.field("precision").refuse(f"a square of {width}")
    return raw.make(Law, read_numbers(weights), precision, raw.field("worth").number())


def read_numbers(raw: Json) -> tuple[float, ...]:
    """Read a list of numbers. Raises the file's error where it is none."""
    return raw.each(Json.number)
