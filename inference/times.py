"""Estimated seconds of forwards and of the link: profiles, corrected by measurements during use.

The target's engine uses TargetTimes. A client has DraftTimes, TargetTimes and LinkTimes. All start
from profiles where there are any, and follow measured times up and down. Pure: no clock is read.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from statistics import median
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

KEPT = 15
"""Latest samples kept of one shape; their median forgets a disturbance after half as many."""

TRUSTED = 3
"""Samples from which a shape's own median is used. With fewer, one disturbed forward would make all
other shapes look cheap.
"""

REMEMBERED = 2 * KEPT
"""Latest samples kept of all shapes together; it makes old samples of a rare shape go."""

STEPS = 64
"""Latest differences between exchanges that the seconds per byte are estimated from."""

PROFILE_ERROR = 0.1
"""Relative spread of a profiled time, which was measured earlier and in another context."""

GUESS_ERROR = 0.5
"""Relative spread of a time that was neither profiled nor measured often enough."""

TELLING_STEPS, TELLING_ERRORS = 5, 4.0
"""Conditions for using a slope as seconds per byte: this many differences of about one size,
and a slope this many standard errors above 0.
"""

Shape: TypeAlias = tuple[int, int]
"""Rows of a forward, and nodes of each row."""


class Estimate(NamedTuple):
    """An estimated time and its standard error.

    Samples give the median and its standard error. The spread of a profile or of a guess is assumed
    (PROFILE_ERROR, GUESS_ERROR).
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


class ForwardTimes:
    """Measured seconds of a forward by padded rows and nodes.

    A shape with few samples is estimated by a line through all measured shapes.
    """

    def __init__(self) -> None:
        self._samples: dict[tuple[int, int], deque[float]] = {}
        self._medians: dict[tuple[int, int], float] = {}
        self._line: tuple[float, float] | None = None  # fixed seconds, seconds per computed node

    def record(self, rows: int, nodes: int, seconds: float) -> None:
        """Add a sample: the seconds of a forward of this padded shape."""
        shape = (rows, nodes)
        samples = self._samples.setdefault(shape, deque(maxlen=KEPT))
        samples.append(seconds)
        self._medians[shape] = median(samples)
        self._line = None

    def seconds(self, rows: int, nodes: int) -> float:
        """The shape's median in seconds, else the line's estimate; 0 before the first sample."""
        if not self._medians:
            return 0.0
        if len(self._samples.get((rows, nodes), ())) >= TRUSTED:
            return self._medians[rows, nodes]
        if self._line is None:
            self._line = self._fit()
        fixed, each = self._line
        return fixed + each * rows * nodes

    def _fit(self) -> tuple[float, float]:
        """Least squares over the medians, weighted by samples; both parts are 0 or more."""
        computed = np.array([rows * nodes for rows, nodes in self._medians], dtype=np.float64)
        seconds = np.array(list(self._medians.values()))
        weights = np.array([len(samples) for samples in self._samples.values()], dtype=np.float64)
        mean_computed, mean_seconds = (
            np.average(computed, weights=weights),
            np.average(seconds, weights=weights),
        )
        spread = np.average((computed - mean_computed) ** 2, weights=weights)
        if spread == 0:
            return float(mean_seconds), 0.0
        slope = (
            np.average((computed - mean_computed) * (seconds - mean_seconds), weights=weights)
            / spread
        )
        slope = min(max(float(slope), 0.0), float(mean_seconds / mean_computed))
        return float(mean_seconds - slope * mean_computed), slope


class _Followed:
    """Estimated seconds by shape, which follow the latest measurements.

    The estimate is the median of the shape's latest samples. Without enough samples it is the
    profile times its drift, and without a profile it is a line through all measured shapes. Load or
    a long context slows down every shape, so the drift is one factor for the whole profile.

    covers: whether the profile says what a shape takes. Other shapes, whose seconds it can only
    bound, say nothing of the drift.
    """

    def __init__(
        self,
        profile: Callable[[Shape], float] | None,
        covers: Callable[[Shape], bool] = lambda shape: True,
    ) -> None:
        self._profile, self._line = profile and cache(profile), ForwardTimes()
        self._covers = covers
        self._latest: deque[tuple[Shape, float]] = deque(maxlen=REMEMBERED)
        self._drift = Estimate(1.0, 0.0)
        self._estimates: dict[Shape, Estimate] = {}

    @property
    def known(self) -> bool:
        return self._profile is not None or bool(self._latest)

    def observe(self, shape: Shape, seconds: float) -> None:
        self._latest.append((shape, seconds))
        self._estimates.clear()
        if self._profile is None:
            self._line.record(*shape, seconds)
        else:
            latest = [sample for sample in self._latest if self._covers(sample[0])][-KEPT:]
            if len(latest) < TRUSTED:
                return  # one delayed call would make all shapes look expensive
            self._drift = middle([seconds / self._profile(shape) for shape, seconds in latest])

    def estimate(self, shape: Shape) -> Estimate:
        if shape not in self._estimates:
            self._estimates[shape] = self._estimated(shape)
        return self._estimates[shape]

    def _estimated(self, shape: Shape) -> Estimate:
        own = [seconds for other, seconds in self._latest if other == shape][-KEPT:]
        if len(own) >= TRUSTED:
            return middle(own)
        if self._profile is not None:
            profiled = self._profile(shape)
            seconds = profiled * self._drift.seconds
            return Estimate(
                seconds, math.hypot(profiled * self._drift.spread, PROFILE_ERROR * seconds)
            )
        seconds = self._line.seconds(*shape)
        return Estimate(seconds, GUESS_ERROR * seconds) if self._latest else UNKNOWN


class DraftTimes:
    """Seconds of one call of the draft by its width, which is the number of nodes that it ranks.

    profile: seconds (above 0) by width. Other widths are interpolated linearly, and extrapolated by
    the line through the last two.
    """

    def __init__(self, profile: Mapping[int, float] | None = None) -> None:
        self._points = sorted((profile or {}).items())
        self._times = _Followed(self._profiled if self._points else None)

    @property
    def known(self) -> bool:
        """Whether there is a profile or a sample."""
        return self._times.known

    def observe(self, width: int, seconds: float) -> None:
        """Record that a call of this width took so many seconds."""
        self._times.observe((1, width), seconds)

    def seconds(self, width: int) -> float:
        """Estimated seconds of a call; 0 without a profile and samples."""
        return self.estimate(width).seconds

    def estimate(self, width: int) -> Estimate:
        """The estimate for a call; UNKNOWN without a profile and samples."""
        return self._times.estimate((1, width))

    def _profiled(self, shape: Shape) -> float:
        width, (widths, seconds) = shape[1], zip(*self._points, strict=True)
        if width <= widths[-1] or len(widths) == 1:
            return float(np.interp(width, widths, seconds))
        slope = max((seconds[-1] - seconds[-2]) / (widths[-1] - widths[-2]), 0.0)
        return float(seconds[-1] + slope * (width - widths[-1]))


class TargetTimes:
    """Seconds of a forward of the target by its rows and the nodes of each row.

    A forward is computed as the cheapest profiled shape that it fits in. A forward that fits in no
    shape takes as many of the largest shape as cover it.

    profile: seconds (above 0) by shape, as the target announces them.
    """

    def __init__(self, profile: Mapping[Shape, float] | None = None) -> None:
        self._profile = dict(profile or {})
        self._times = _Followed(
            self._profiled if self._profile else None, self._profile.__contains__
        )
        self._computed: dict[Shape, Shape] = {}

    @property
    def known(self) -> bool:
        """Whether there is a profile or a sample."""
        return self._times.known

    def observe(self, rows: int, nodes: int, seconds: float) -> None:
        """Record a forward's time on the target (an answer's model_seconds).

        nodes: the most nodes of a row.
        """
        self._times.observe(self._shape(rows, nodes), seconds)

    def seconds(self, rows: int, nodes: int) -> float:
        """Estimated seconds of a forward; 0 without a profile and samples."""
        return self.estimate(rows, nodes).seconds

    def estimate(self, rows: int, nodes: int) -> Estimate:
        """The estimate for a forward; UNKNOWN without a profile and samples."""
        return self._times.estimate(self._shape(rows, nodes))

    def beyond(self, rows: int, nodes: int) -> bool:
        """Whether such a forward fits in no profiled shape."""
        return bool(self._profile) and self._shape(rows, nodes) not in self._profile

    def _shape(self, rows: int, nodes: int) -> Shape:
        """The shape that a forward is computed as; its own when no profiled shape holds it."""
        asked = rows, nodes
        if asked not in self._computed:
            holding = [shape for shape in self._profile if shape[0] >= rows and shape[1] >= nodes]
            self._computed[asked] = min(holding, key=self._profile.__getitem__, default=asked)
        return self._computed[asked]

    def _profiled(self, shape: Shape) -> float:
        if shape in self._profile:
            return self._profile[shape]
        largest = max(self._profile, key=math.prod)
        return (
            self._profile[largest]
            * math.ceil(shape[0] / largest[0])
            * math.ceil(shape[1] / largest[1])
        )


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
