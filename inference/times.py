"""What a forward of the target costs, measured while it serves."""

from __future__ import annotations

from collections import deque
from statistics import median

import numpy as np

KEPT = 15
"""Latest samples of one shape; their median forgets a disturbance after half as many."""

TRUSTED = 3
"""Samples from which a shape's own median is believed; one disturbed forward must not make all others look cheap beside it."""


class ForwardTimes:
    """Seconds of a forward by padded rows and nodes. Shapes hardly ever seen are estimated by a line through all that were."""

    def __init__(self) -> None:
        self._samples: dict[tuple[int, int], deque[float]] = {}
        self._medians: dict[tuple[int, int], float] = {}
        self._line: tuple[float, float] | None = None  # seconds, seconds a computed node

    def record(self, rows: int, nodes: int, seconds: float) -> None:
        shape = (rows, nodes)
        samples = self._samples.setdefault(shape, deque(maxlen=KEPT))
        samples.append(seconds)
        self._medians[shape] = median(samples)
        self._line = None

    def seconds(self, rows: int, nodes: int) -> float:
        """The median of this shape, else the line's estimate; 0 before the first sample."""
        if not self._medians:
            return 0.0
        if len(self._samples.get((rows, nodes), ())) >= TRUSTED:
            return self._medians[rows, nodes]
        if self._line is None:
            self._line = self._fit()
        fixed, each = self._line
        return fixed + each * rows * nodes

    def _fit(self) -> tuple[float, float]:
        """Least squares over the medians, weighted by samples; neither the fixed part nor the slope is negative."""
        computed = np.array([rows * nodes for rows, nodes in self._medians], dtype=np.float64)
        seconds = np.array(list(self._medians.values()))
        weights = np.array([len(samples) for samples in self._samples.values()], dtype=np.float64)
        mean_computed, mean_seconds = np.average(computed, weights=weights), np.average(seconds, weights=weights)
        spread = np.average((computed - mean_computed) ** 2, weights=weights)
        if spread == 0:
            return float(mean_seconds), 0.0
        slope = np.average((computed - mean_computed) * (seconds - mean_seconds), weights=weights) / spread
        slope = min(max(float(slope), 0.0), float(mean_seconds / mean_computed))
        return float(mean_seconds - slope * mean_computed), slope
