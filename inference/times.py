"""Estimated seconds of a model's calls: profiles, corrected by measurements during use.

The target's engine has a LatencyModel of its forwards. A client has one, too, and another of its
draft. They start from profiles where there are any, and follow measured times up and down. Pure: no
clock is read.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import NamedTuple, TypeAlias

import numpy as np

LEAST = 1e-9
"""Seconds that a call takes at least: a clock may not have moved meanwhile."""

TRUSTED = 3
"""Samples from which a median is used. With fewer, one disturbed call could be all there is."""

STALE, CHANGED = 16, 1.2
"""Calls after which samples of a shape may be out of date, and the factor by which the next sample
shows that they are.
"""

LATEST = 7
"""Latest samples of one shape that count. A change of the machine is believed after four."""

REMEMBERED = 2048
"""Calls after which a shape that was not seen again counts as never measured."""

STEP = 2.0
"""Factor in nodes beyond what was measured within which a time can be bounded at all."""

RIGHT = 0.25
"""A profile is right about two shapes if it errs less in the logarithm of their ratio."""

WIDEST = 64
"""Nodes of the widest call of a draft whose time a profile tells."""

Shape: TypeAlias = tuple[int, int]
"""Rows of a forward, and nodes of each row."""


class LatencyModel:
    """The law of a model's calls: seconds by shape, from measured calls and a profile.

    A shape with TRUSTED samples takes their median. Fewer are believed upwards at once: a shape
    takes at least what one of fewer nodes was seen to take, until it, or one of more nodes, is seen
    quicker. Other shapes lie between the measured ones next to them by the nodes of all rows: as
    the profile says while it is right about these two, else on a line. Beyond the widest that was
    measured the profile goes on, or the slope of the widest two.

    profile: seconds (above 0) by shape. A call is computed as the cheapest shape that it fits in,
        or as several of the largest.
    measured: whether these were measured in this process. Without it a profile is a guess.
    """

    def __init__(
        self, profile: Mapping[Shape, float] | None = None, *, measured: bool = False
    ) -> None:
        self.profile = dict(profile or {})
        self._held = dict[Shape, float]()  # seconds by the profile of shapes that it does not name
        self._seen: dict[Shape, _ShapeSamples] = {}  # the latest stands last
        self._calls = 0  # observed so far
        self._cache: dict[Shape, float] = {}
        self._near_to: dict[Shape, _Near] = {}
        self._table: _ShapeTable | None = None
        if measured:
            self.trust(self.profile)

    @property
    def known(self) -> bool:
        """Whether there is a profile or a sample."""
        return bool(self.profile or self._seen)

    def observe(self, rows: int, nodes: int, seconds: float) -> None:
        """Record that a call of this padded shape took so many seconds."""
        seconds = max(seconds, LEAST)
        self._calls += 1
        seen = self._seen.pop((rows, nodes), None) or _ShapeSamples()
        self._seen[rows, nodes] = seen
        narrowest = min(shape for shape in self._seen if shape[0] == rows)
        seen.add(seconds, self._calls)
        seen.pace = self._seen[narrowest], self._seen[narrowest].middle
        while self._calls - next(iter(self._seen.values())).at > REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._cache.clear()
        self._near_to.clear()
        self._table = None

    def trust(self, measured: Mapping[Shape, float]) -> None:
        """Record medians that were measured elsewhere in this process: seconds by shape."""
        for shape, seconds in measured.items():
            for _ in range(TRUSTED):
                self.observe(*shape, seconds)

    def samples(self, rows: int, nodes: int) -> int:
        """Number of samples of a shape that count at present."""
        seen = self._seen.get((rows, nodes))
        return len(seen.latest) if seen else 0

    def seconds(self, rows: int, nodes: int) -> float:
        """Expected seconds of a call; 0 without a profile and samples."""
        shape = rows, nodes
        if shape not in self._cache:
            self._cache[shape] = self._expected(shape)
        return self._cache[shape]

    def most(self, rows: int, nodes: int) -> float:
        """Seconds that a call may take by what is known; infinite where nothing of at least half as
        many nodes was measured.
        """
        expected, seen = self.seconds(rows, nodes), self._seen.get((rows, nodes))
        if seen is not None:
            return expected if seen.trusted else max(expected, *seen.latest)
        near = self._near((rows, nodes))
        if near.profiled and near.least < math.inf:
            return max(expected, min(CHANGED * expected, near.least))
        return max(expected, min(near.grown, near.least))

    def hoped(self, rows: int, nodes: int) -> tuple[float, float]:
        """Seconds of a call as a trial hopes and fears: as the dearest one of fewer nodes, and as
        if its time grew with its nodes. A profile that is right leaves nothing to hope for.
        """
        near = self._near((rows, nodes))
        if near.profiled:
            return self.seconds(rows, nodes), self.most(rows, nodes)
        return near.lower, min(near.grown, near.least)

    def _expected(self, shape: Shape) -> float:
        seen = self._seen.get(shape)
        if seen is not None and seen.trusted:
            return seen.now
        near = self._near(shape)
        if seen is not None:
            return max(near.lower, min(seen.now, near.least))
        return near.expected

    def _near(self, shape: Shape) -> _Near:
        """Bounds and estimates by measured shapes next to this one; kept until the next sample."""
        if shape not in self._near_to:
            self._near_to[shape] = self._between(shape)
        return self._near_to[shape]

    def _between(self, shape: Shape) -> _Near:
        table, nodes = self._measured, shape[0] * shape[1]
        low, high = table.neighbours(shape)
        if low is None and high is None:
            return _Near(0.0, math.inf, math.inf, self._profiled(shape), bool(self.profile))
        if low is None:
            assert high is not None
            _, least = table.bounds(shape)
            share = self._profiled(shape) / self._profiled(table.shape(high)) if self.profile else 1
            return _Near(0.0, least, math.inf, least * min(share, 1.0), False)
        lower, least = table.bounds(shape)
        at, seconds = table.nodes.item(low), table.seconds.item(low)
        grown = seconds * nodes / at if nodes <= STEP * at else math.inf
        other = table.before(low) if high is None else high
        profiled = bool(self.profile) and (other is None or self._is_right(low, other))
        if profiled:
            expected = seconds * self._profiled(shape) / self._profiled(table.shape(low))
        elif other is None or table.nodes.item(other) == at:
            expected = seconds
        else:
            slope = (table.seconds.item(other) - seconds) / (table.nodes.item(other) - at)
            expected = seconds + max(slope, 0.0) * (nodes - at)
        return _Near(lower, least, grown, max(min(expected, least), lower), profiled)

    def _is_right(self, one: int, other: int) -> bool:
        """Whether the profile is right about how the times of two measured shapes compare."""
        table = self._measured
        said = self._profiled(table.shape(one)) / self._profiled(table.shape(other))
        return abs(math.log(table.seconds.item(one) / table.seconds.item(other) / said)) < RIGHT

    def _profiled(self, shape: Shape) -> float:
        """Seconds by the profile of the cheapest shape that holds this one; 0 without a profile."""
        if shape in self.profile or not self.profile:
            return self.profile.get(shape, 0.0)
        if shape not in self._held:
            rows, nodes = shape
            holding = [one for one in self.profile if one[0] >= rows and one[1] >= nodes]
            largest = max(self.profile, key=math.prod)
            calls = math.ceil(rows / largest[0]) * math.ceil(nodes / largest[1])
            self._held[shape] = min(
                (self.profile[one] for one in holding), default=calls * self.profile[largest]
            )
        return self._held[shape]

    @property
    def _measured(self) -> _ShapeTable:
        if self._table is None:
            self._table = _ShapeTable(self._seen)
        return self._table


class _Near(NamedTuple):
    """Bounds and estimates of a shape's seconds, by measured shapes of fewer and of more nodes."""

    lower: float  # the dearest of fewer nodes
    least: float  # the cheapest of more nodes
    grown: float  # if time grows with nodes from the next of fewer nodes; infinite beyond STEP
    expected: float
    profiled: bool  # whether the profile is believed here


class _ShapeSamples:
    """Latest samples of one shape.

    at: the serial number of the last
    trusted: whether there are enough
    pace: the narrowest shape of as many rows, and its seconds when the last sample was taken
    """

    def __init__(self) -> None:
        self.latest: deque[float] = deque(maxlen=LATEST)
        self.middle, self.at, self.trusted = 0.0, 0, False
        self.pace = self, 0.0

    @property
    def now(self) -> float:
        """Seconds on the machine as it is: a neighbour slows all shapes down by one factor."""
        narrowest, before = self.pace
        return self.middle * (narrowest.middle / before) if before else self.middle

    def add(self, seconds: float, at: int) -> None:
        changed = self.latest and not 1 / CHANGED < seconds / self.middle < CHANGED
        if changed and at - self.at > STALE:
            self.latest.clear()  # the machine has changed since
        self.latest.append(seconds)
        self.at, self.trusted = at, len(self.latest) >= TRUSTED
        self.middle = median(self.latest) if self.trusted else min(self.latest)


class _ShapeTable:
    """The measured shapes as arrays [n], in the order of the nodes of all rows: these nodes,
    seconds, whether there are enough samples, and when the last was taken.
    """

    def __init__(self, seen: Mapping[Shape, _ShapeSamples]) -> None:
        self._shapes = sorted(seen, key=lambda shape: (math.prod(shape), shape))
        latest = [seen[shape] for shape in self._shapes]
        self.nodes = np.array([math.prod(shape) for shape in self._shapes], dtype=np.int64)
        self.seconds = np.array([one.now for one in latest], dtype=np.float64)
        self._trusted = np.array([one.trusted for one in latest], dtype=np.bool_)

    def shape(self, index: int) -> Shape:
        return self._shapes[index]

    def neighbours(self, shape: Shape) -> tuple[int | None, int | None]:
        """The indices of the widest shape of fewer or as many nodes, and of the narrowest of
        more. The shape itself is left out.
        """
        nodes = math.prod(shape)
        others = [index for index, one in enumerate(self._shapes) if one != shape]
        low = [index for index in others if self.nodes[index] <= nodes]
        high = [index for index in others if self.nodes[index] > nodes]
        return (low[-1] if low else None), (high[0] if high else None)

    def before(self, index: int) -> int | None:
        """The index of the widest shape of fewer nodes than this one."""
        narrower = np.flatnonzero(self.nodes < self.nodes[index])
        return int(narrower[-1]) if len(narrower) else None

    def bounds(self, shape: Shape) -> tuple[float, float]:
        """Seconds of the dearest shape of fewer or as many nodes, and of the cheapest of more.

        Few samples of the dearest count as long as nothing wider was seen quicker.
        """
        below = self.nodes <= math.prod(shape)
        below &= [one != shape for one in self._shapes]
        least = float(self.seconds[self.nodes > math.prod(shape)].min(initial=math.inf))
        sure = float(self.seconds[below & self._trusted].max(initial=0.0))
        return max(sure, min(float(self.seconds[below].max(initial=0.0)), least)), least


def times_by_width(profile: Mapping[int, float] | None = None) -> LatencyModel:
    """The law of a draft's calls of one row, by their width: the number of nodes that they rank.

    profile: seconds (above 0) by width. Other widths are interpolated linearly, and extrapolated by
        the line through the last two.
    """
    points = sorted((profile or {}).items())
    if not points:
        return LatencyModel()
    widths, seconds = zip(*points, strict=True)
    last = points[-2:]
    slope = max((last[-1][1] - last[0][1]) / max(last[-1][0] - last[0][0], 1), 0.0)

    def at(width: int) -> float:
        return float(np.interp(width, widths, seconds) + slope * max(width - widths[-1], 0))

    return LatencyModel({(1, width): at(width) for width in range(1, WIDEST + 1)})
