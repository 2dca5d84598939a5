"""Percentiles, medians, means and bootstrap intervals. Pure and repeatable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import numpy as np

from inference.cost.quantity import Figure, total

CONFIDENCE = 0.95
MIN_TEXTS = 6
"""The fewest texts from which a difference is claimed. Of fewer, all lie on one side of the true
median too often (2 in 2**5 cases).
"""
_DRAWS = 2000
_SEED = 20261


class Interval(NamedTuple):
    """A median and the interval that holds it with CONFIDENCE."""

    median: float
    low: float
    high: float


class Percentiles(NamedTuple):
    """Percentiles 50, 90, 99, and the maximum."""

    p50: float
    p90: float
    p99: float
    largest: float


def bootstrap_median(values: Sequence[float]) -> Interval:
    """The median and its interval, by the percentile bootstrap with a fixed seed. The interval of
    one value has no width.
    """
    if not values:
        raise ValueError("nothing was measured")
    measured = np.asarray(values, dtype=np.float64)
    drawn = np.random.default_rng(_SEED).choice(measured, (_DRAWS, len(measured)))
    low, high = np.quantile(np.median(drawn, axis=1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(np.median(measured)), float(low), float(high))


def geometric_interval(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The interval that holds the geometric mean over groups, by a bootstrap with a fixed seed.

    groups: ratios by prompt. Prompts are drawn, and repetitions within each: those of one prompt
    depend on each other, and one prompt alone still shows how far its repetitions spread.
    """
    generator, means = np.random.default_rng(_SEED), []
    for group in groups:
        logs = np.log(np.asarray(group, dtype=np.float64))
        means.append(generator.choice(logs, (_DRAWS, len(logs))).mean(axis=1))
    drawn = generator.integers(len(groups), size=(_DRAWS, len(groups)))
    draws = np.take_along_axis(np.stack(means, axis=1), drawn, axis=1)  # [draw, group]
    low, high = np.exp(np.quantile(draws.mean(1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]))
    return float(low), float(high)


def median_figure(figures: Sequence[Figure]) -> Figure:
    """The median of one quantity, with a figure for each text. Its quality is the worst of them: it
    is unavailable, with the reasons, as soon as one is.
    """
    values = [figure.value for figure in figures if figure.value is not None]
    worst = total(figures)
    return worst if worst.value is None else replace(worst, value=median(values))


def percentiles(values: Sequence[float]) -> Percentiles | None:
    """The percentiles. None without values, such as the gaps of a text whose tokens all came
    together.
    """
    if not values:
        return None
    return Percentiles(*np.quantile(np.asarray(values, dtype=np.float64), [0.5, 0.9, 0.99, 1.0]))
