"""How measured values spread: percentiles, and a median with its bootstrap interval. Pure and
repeatable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
DRAWS = 2000
_SEED = 20261


class Interval(NamedTuple):
    """A median and the interval that holds it with CONFIDENCE."""

    median: float
    low: float
    high: float


class Percentiles(NamedTuple):
    """Half, nine in ten and 99 in a hundred of the values are at most this."""

    p50: float
    p90: float
    p99: float


def bootstrap_median(values: Sequence[float]) -> Interval:
    """The interval from DRAWS medians of values drawn with replacement (percentile bootstrap);
    the seed is fixed. One value has no width.
    """
    if not values:
        raise ValueError("nothing was measured")
    measured = np.asarray(values, dtype=np.float64)
    drawn = np.random.default_rng(_SEED).choice(measured, (DRAWS, len(measured)))
    low, high = np.quantile(np.median(drawn, axis=1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(np.median(measured)), float(low), float(high))


def percentiles(values: Sequence[float]) -> Percentiles | None:
    """None where there are no values, such as gaps between the chunks of a text that came in
    one.
    """
    return (
        Percentiles(*np.quantile(np.asarray(values, dtype=np.float64), [0.5, 0.9, 0.99]).tolist())
        if values
        else None
    )
