"""Estimated seconds of an exchange over the link to the target, from measured ones.

Pure: no clock is read.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.times import TRUSTED

KEPT = 15
"""Latest exchanges whose median is the round trip."""

STEPS = 64
"""Latest differences between exchanges that the seconds per byte are estimated from."""

GUESS_ERROR = 0.5
"""Relative spread of a time that was not measured often enough."""

TELLING_STEPS, TELLING_ERRORS = 5, 4.0
"""Conditions for using a slope as seconds per byte: this many differences of about one size,
and a slope this many standard errors above 0.
"""


class Estimate(NamedTuple):
    """An estimated time and its standard error.

    Samples give the median and its standard error. The spread of a guess is assumed (GUESS_ERROR).
    """

    seconds: float
    spread: float  # one standard error, in seconds


UNKNOWN, NOTHING = Estimate(0.0, math.inf), Estimate(0.0, 0.0)


def middle(samples: Sequence[float]) -> Estimate:
    """The median of samples, with a standard error from their median absolute deviation.

    Fewer than TRUSTED samples give a guess with GUESS_ERROR; none gives UNKNOWN.
    """
    if not samples:
        return UNKNOWN
    centre = median(samples)
    if len(samples) < TRUSTED:
        return Estimate(centre, GUESS_ERROR * abs(centre))
    deviation = 1.4826 * median(
        abs(sample - centre) for sample in samples
    )  # equals the standard deviation for normal samples
    return Estimate(centre, 1.2533 * deviation / math.sqrt(len(samples)))


class LinkTimes:
    """Seconds of an exchange with the target without the target's own work.

    They are a round trip plus seconds per byte, the same in both directions. A sample is the time
    between request and answer at the client, less the time that the target reports for its work.
    Both are durations, so the two clocks need not agree. Host work around the forward counts as
    link. The round trip is the median of the last KEPT samples. The seconds per byte come from
    successive exchanges of different size, and are 0 while jitter could explain the difference.
    """

    def __init__(self) -> None:
        self._latest: deque[tuple[int, float]] = deque(maxlen=KEPT)  # bytes, seconds
        self._steps: deque[tuple[int, float]] = deque(
            maxlen=STEPS
        )  # between two exchanges: bytes more (or less), seconds more
        self.round_trip, self.byte_seconds = UNKNOWN, NOTHING

    @property
    def known(self) -> bool:
        """Whether there is a sample."""
        return bool(self._latest)

    def observe(self, elapsed: float, at_target: float, transferred: int) -> None:
        """Record an exchange.

        elapsed: seconds between request and answer at the client.
        at_target: seconds of these that the target spent on waiting and forwards.
        transferred: bytes, up and down together.
        """
        seconds = max(elapsed - at_target, 0.0)
        if self._latest and self._latest[-1][0] != transferred:
            size, before = self._latest[-1]
            self._steps.append((transferred - size, seconds - before))
        self._latest.append((transferred, seconds))
        self.byte_seconds = (
            _slope(np.array(self._steps, dtype=np.float64)) if self._steps else NOTHING
        )
        each = self.byte_seconds.seconds
        self.round_trip = middle(
            [max(seconds - each * size, 0.0) for size, seconds in self._latest]
        )

    def seconds(self, transferred: int) -> float:
        """Estimated seconds of an exchange of so many bytes; 0 without samples."""
        return self.estimate(transferred).seconds

    def estimate(self, transferred: int) -> Estimate:
        """The estimate for an exchange of so many bytes; UNKNOWN without samples."""
        fixed, each = self.round_trip, self.byte_seconds
        return Estimate(
            fixed.seconds + each.seconds * transferred,
            math.hypot(fixed.spread, each.spread * transferred),
        )


def _slope(steps: NDArray[np.float64]) -> Estimate:  # [n, 2]
    """Seconds per byte from differences between exchanges: the median slope, weighted by size.

    steps: [n, 2] bytes and seconds.  The result is NOTHING unless the slope stands out from noise.
    """
    sizes, seconds = np.abs(steps[:, 0]), steps[:, 1] * np.sign(steps[:, 0])
    if sizes.sum() ** 2 < TELLING_STEPS * (sizes**2).sum():
        return NOTHING  # too few differences are large enough
    slopes = seconds / sizes
    order = np.argsort(slopes)
    slope = float(slopes[order][np.searchsorted(np.cumsum(sizes[order]), sizes.sum() / 2)])
    noise = 1.2533 * 1.4826 * np.median(np.abs(seconds - slope * sizes))
    spread = float(noise / math.sqrt((sizes**2).sum()))
    return Estimate(slope, spread) if slope > TELLING_ERRORS * spread else NOTHING
