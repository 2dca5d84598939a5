"""Percentiles, and intervals by a bootstrap with a fixed seed. Pure and repeatable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
_DRAWS = 2000
_SEED = 20261


class Interval(NamedTuple):
    """A median or mean, and the interval that holds the true one with CONFIDENCE."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Percentiles(NamedTuple):
    """Percentiles 50, 90, 99, and the maximum."""

    p50: float
    p90: float
    p99: float
    largest: float


def percentiles(values: Sequence[float]) -> Percentiles | None:
    """The percentiles. None without values, such as the gaps of a text whose tokens all came
    together.
    """
    return Percentiles(*np.quantile(values, [0.5, 0.9, 0.99, 1.0]).tolist()) if values else None


def median_interval(values: Sequence[float]) -> Interval:
    """The median with its interval, which has no width for one value."""
    drawn = np.random.default_rng(_SEED).choice(values, (_DRAWS, len(values)))
    return _interval(float(np.median(values)), np.median(drawn, axis=1))


def geometric_interval(groups: Sequence[Sequence[float]]) -> Interval:
    """The geometric mean over groups with its interval.

    groups: ratios by prompt. Prompts are drawn, and repetitions within each: those of one prompt
    depend on each other, and one prompt alone still shows how far its repetitions spread.
    """
    generator, logs = np.random.default_rng(_SEED), [np.log(group) for group in groups]
    means = [generator.choice(group, (_DRAWS, len(group))).mean(axis=1) for group in logs]
    drawn = generator.integers(len(groups), size=(_DRAWS, len(groups)))
    draws = np.take_along_axis(np.stack(means, axis=1), drawn, axis=1)  # [draw, group]
    value = np.exp(np.mean([group.mean() for group in logs]))
    return _interval(float(value), np.exp(draws.mean(axis=1)))


def _interval(value: float, draws: NDArray[Any]) -> Interval:
    """The interval of a value by its draws, which may all miss it by a rounding error."""
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
    return Interval(value, min(low, value), max(high, value))
