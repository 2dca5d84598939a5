"""Fit of a logistic law."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.planner.acceptance import hazards
from inference.planner.child_features import FloatArray

WORTH = 30
"""Verdicts that the fitted prior stands for: what a session of another pair must outweigh."""


def fit_weights(
    table: FloatArray, taken: NDArray[np.bool_], weight: FloatArray
) -> dict[str, Any]:  # [n, F], [n], [n]
    """The likeliest logistic law of these children, as a record. weight: of each; WORTH in sum."""
    least = 0.1 * np.eye(table.shape[1])  # what no data speak of stays near 0
    law = np.zeros(table.shape[1])
    for _ in range(30):
        chance = hazards(table, law)
        precision = least + (table * (weight * chance * (1 - chance))[:, None]).T @ table
        law -= np.linalg.solve(precision, least @ law + (weight * (chance - taken)) @ table)
    return {
        "weights": law.round(6).tolist(),
        "precision": ((precision + precision.T) / 2).round(6).tolist(),
        "worth": WORTH,
    }
