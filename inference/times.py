"""What forwards and the link cost: profiles, set right by what is measured while they are used.
Pure: no clock is read.

The target's engine uses ForwardTimes. A client has DraftTimes, TargetTimes and LinkTimes, which
start from profiles where there are any and follow what it observes, up and down.
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
"""Latest samples of one shape; their median forgets a disturbance after half as many."""

TRUSTED = 3
"""Samples from which a shape's own median is believed; one disturbed forward must not make all
others look cheap beside it.
"""

REMEMBERED = 2 * KEPT
"""Latest samples of all shapes together, among which a shape's own are looked for: also what is
seldom used is forgotten.
"""

STEPS = 64
"""Latest differences between exchanges from which it is told what a byte takes."""

PROFILE_ERROR = 0.1
"""Spread of a profiled time, relative to it: it is the median of a few calls, made at another
moment and in another context.
"""

GUESS_ERROR = 0.5
"""Spread of a time that was neither profiled nor observed often enough, relative to it."""

TELLING_STEPS, TELLING_ERRORS = 5, 4.0
"""What a byte takes is believed from so many differences of (about) one size, when it is so many
standard errors above 0.
"""

Shape: TypeAlias = tuple[int, int]
"""Rows, and nodes of each."""


class Estimate(NamedTuple):
    """A time, and one standard error of it: what is true lies within `spread` of `seconds` in about
    two of three cases.

    From samples it is the median with its standard error; the relative spreads of profiles and
    guesses are stated, not measured.
    """

    seconds: float
    spread: float


UNKNOWN, NOTHING = Estimate(0.0, math.inf), Estimate(0.0, 0.0)


def middle(samples: Sequence[float]) -> Estimate:
    """The median, and its standard error by the median deviation; of fewer than TRUSTED samples
    a guess.
    """
    if not samples:
        return UNKNOWN
    centre = median(samples)
    if len(samples) < TRUSTED:
        return Estimate(centre, GUESS_ERROR * abs(centre))
    deviation = 1.4826 * median(
        abs(sample - centre) for sample in samples
    )  # of normal samples the standard deviation
    return Estimate(centre, 1.2533 * deviation / math.sqrt(len(samples)))


class ForwardTimes:
    """Seconds of a forward by padded rows and nodes. Shapes hardly ever seen are estimated by a
    line through all that were.
    """

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
        """Least squares over the medians, weighted by samples; neither the fixed part nor the
        slope is negative.
        """
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
    """Seconds by shape: the median of what was lately observed there, else the profile times how
    far it was off lately, else a line.

    A target that slows down under load, or in a long context, does so at every shape: `profile` is
    followed as a whole.
    """

    def __init__(self, profile: Callable[[Shape], float] | None) -> None:
        self._profile, self._line = profile and cache(profile), ForwardTimes()
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
            latest = list(self._latest)[-KEPT:]
            if len(latest) < TRUSTED:
                return  # one call that was held up would make all others look dear
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
    """Seconds of one call of the draft by its width: the nodes that are ranked in it.

    profile: seconds by width, above 0; between two widths it is a line, beyond the last the line
    through the last two goes on.
    """

    def __init__(self, profile: Mapping[int, float] | None = None) -> None:
        self._points = sorted((profile or {}).items())
        self._times = _Followed(self._profiled if self._points else None)

    @property
    def known(self) -> bool:
        """Whether there is a profile or a sample."""
        return self._times.known

    def observe(self, width: int, seconds: float) -> None:
        """A call of this width took so long."""
        self._times.observe((1, width), seconds)

    def seconds(self, width: int) -> float:
        """0 while nothing is known."""
        return self.estimate(width).seconds

    def estimate(self, width: int) -> Estimate:
        """UNKNOWN while nothing is known."""
        return self._times.estimate((1, width))

    def _profiled(self, shape: Shape) -> float:
        width, (widths, seconds) = shape[1], zip(*self._points, strict=True)
        if width <= widths[-1] or len(widths) == 1:
            return float(np.interp(width, widths, seconds))
        slope = max((seconds[-1] - seconds[-2]) / (widths[-1] - widths[-2]), 0.0)
        return float(seconds[-1] + slope * (width - widths[-1]))


class TargetTimes:
    """Seconds of a forward of the target by rows and nodes of each.

    profile: seconds by shape, above 0, as the target describes itself. A forward is computed as the
    cheapest profiled shape that holds it; one that none holds takes as many of the largest as cover
    it.
    """

    def __init__(self, profile: Mapping[Shape, float] | None = None) -> None:
        self._profile = dict(profile or {})
        self._times = _Followed(self._profiled if self._profile else None)
        self._computed: dict[Shape, Shape] = {}

    @property
    def known(self) -> bool:
        """Whether there is a profile or a sample."""
        return self._times.known

    def observe(self, rows: int, nodes: int, seconds: float) -> None:
        """A forward of so many rows, of up to so many nodes each, took so long on the target (an
        answer's model_seconds).
        """
        self._times.observe(self._shape(rows, nodes), seconds)

    def seconds(self, rows: int, nodes: int) -> float:
        """0 while nothing is known."""
        return self.estimate(rows, nodes).seconds

    def estimate(self, rows: int, nodes: int) -> Estimate:
        """UNKNOWN while nothing is known."""
        return self._times.estimate(self._shape(rows, nodes))

    def _shape(self, rows: int, nodes: int) -> Shape:
        """What it is computed as, where that is in the profile."""
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
    """Seconds of an exchange with the target, its own work apart: a round trip, and so much a byte
    in either direction.

    A sample is what passed between asking and the answer at the client, less what the target says
    that it spent on it: two durations, so the two clocks need not agree. What both hosts do around
    the forward counts as link. The round trip is the median over the last KEPT samples, so that a
    changed link is believed after half as many. What a byte takes is told from exchanges one after
    the other whose bytes differ; while jitter could explain their seconds, it is 0 and all is round
    trip.
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
        """An exchange of `transferred` bytes, up and down, took `elapsed` seconds here, of which
        `at_target` seconds of waiting and forwards.
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
        """Seconds of an exchange of so many bytes, up and down; 0 while nothing is known."""
        return self.estimate(transferred).seconds

    def estimate(self, transferred: int) -> Estimate:
        """UNKNOWN while nothing is known."""
        fixed, each = self.round_trip, self.byte_seconds
        return Estimate(
            fixed.seconds + each.seconds * transferred,
            math.hypot(fixed.spread, each.spread * transferred),
        )


def _slope(steps: NDArray[np.float64]) -> Estimate:  # [n, 2]
    """Seconds a byte through steps of bytes and seconds: the median slope, long steps counting
    most. NOTHING unless it is told from noise.
    """
    sizes, seconds = np.abs(steps[:, 0]), steps[:, 1] * np.sign(steps[:, 0])
    if sizes.sum() ** 2 < TELLING_STEPS * (sizes**2).sum():
        return NOTHING  # fewer, or all but a few are too short to tell anything
    slopes = seconds / sizes
    order = np.argsort(slopes)
    slope = float(slopes[order][np.searchsorted(np.cumsum(sizes[order]), sizes.sum() / 2)])
    noise = 1.2533 * 1.4826 * np.median(np.abs(seconds - slope * sizes))
    spread = float(noise / math.sqrt((sizes**2).sum()))
    return Estimate(slope, spread) if slope > TELLING_ERRORS * spread else NOTHING
