"""Durations of a model's forward passes by shape: measured, or else estimated from a prior. Pure:
no clock is read.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple, TypeAlias

MIN_SECONDS = 1e-9
"""Minimum recorded seconds of a call, since a coarse clock may not have advanced."""

TRUSTED = 3
"""Samples after which a shape counts as measured. With fewer, one disturbed call could decide."""

STALE, CHANGED = 16, 1.2
"""Calls after which samples of a shape may be out of date. A next sample that differs from them by
this factor shows that they are.
"""

LATEST = 7
"""Number of latest samples of a shape that count."""

REMEMBERED = 2048
"""Calls after which a shape without new samples counts as never measured."""

STEP = 2.0
"""Maximum ratio of a shape's nodes to a measured shape's, at which that bounds the shape's time."""

RIGHT = 0.25
"""Maximum error of a prior in the logarithm of two shapes' time ratio, to count as right."""

Shape: TypeAlias = tuple[int, int]
"""Number of rows of a call, and of nodes in each row."""

Table: TypeAlias = Mapping[Shape, float]
"""Seconds (above 0) by shape."""


def typical(samples: Collection[float]) -> float:
    """Return the mean of all samples but the slowest, which may be a pause of the machine.

    A median would jump between the two speeds of a machine that another process uses at times.
    """
    return fmean(sorted(samples)[:-1] or samples)


class Cost(NamedTuple):
    """Seconds of a call: expected, and an upper bound. Both are equal if the shape was measured."""

    expected: float
    maximum: float


class Times:
    """Expected seconds of a model's calls by shape.

    A shape with TRUSTED samples takes their typical() seconds. With fewer samples, it is assumed to
    take at least as long as the slowest shape of fewer nodes, until it or a shape of more nodes is
    measured faster. Other shapes are interpolated between the nearest two measured ones by the
    nodes of all rows: by the prior while it is right about these two, else linearly. Beyond the
    widest measured shape, the prior or the slope of the widest two is continued.

    prior: seconds by shape, used without samples. A call takes the time of the cheapest shape that
        holds it, or of several calls of the largest.
    measured: whether the prior was measured in this process, so it counts as TRUSTED samples.
    """

    def __init__(self, prior: Table | None = None, *, measured: bool = False) -> None:
        self.prior = dict(prior or {})
        self._held = dict[Shape, float]()  # the prior's seconds, by shapes that were looked up
        self._samples = dict[Shape, _Samples]()  # in the order of their last samples
        self._calls = 0  # observed so far
        self._costs = dict[Shape, tuple[Cost, Cost]]()  # until the next sample: expected, hoped
        if measured:
            self.trust(self.prior)

    @property
    def widest(self) -> int:
        """Nodes, over all rows, of the widest shape with a prior or a sample."""
        return max(map(math.prod, (*self.prior, *self._samples)), default=0)

    def observe(self, rows: int, nodes: int, seconds: float) -> None:
        """Record the seconds that a call of this padded shape took."""
        self._calls += 1
        self._add((rows, nodes), seconds)

    def trust(self, measured: Table) -> None:
        """Record times that other code of this process measured; they may be out of date."""
        for shape, seconds in measured.items():
            for _ in range(TRUSTED):
                self._add(shape, seconds)
        self._calls += STALE  # however many shapes, so that a large table does not age its own

    def samples(self, rows: int, nodes: int) -> Sequence[float]:
        """Return the samples of a shape that count at present, the latest last."""
        samples = self._samples.get((rows, nodes))
        return tuple(samples.latest) if samples else ()

    def seconds(self, rows: int, nodes: int) -> float:
        """Return the expected seconds of a call; 0 without prior and samples."""
        return self.cost(rows, nodes).expected

    def cost(self, rows: int, nodes: int) -> Cost:
        """Return the seconds of a call. The upper bound is infinite if no shape of at least half
        as many nodes was measured.
        """
        return self._both((rows, nodes))[0]

    def hope(self, rows: int, nodes: int) -> Cost:
        """Return an optimistic estimate of a call's seconds, to decide on a trial. Without samples:
        the time of the slowest shape of fewer nodes, with time proportional to nodes as the bound.
        With a correct prior: as cost().
        """
        return self._both((rows, nodes))[1]

    def _add(self, shape: Shape, seconds: float) -> None:
        samples = self._samples.pop(shape, None) or _Samples()
        self._samples[shape] = samples
        rows = shape[0]
        narrowest = self._samples[min(key for key in self._samples if key[0] == rows)]
        samples.add(max(seconds, MIN_SECONDS), self._calls)
        samples.pace = narrowest, narrowest.mean
        while self._calls - next(iter(self._samples.values())).at > REMEMBERED:
            del self._samples[next(iter(self._samples))]
        self._costs.clear()

    def _both(self, shape: Shape) -> tuple[Cost, Cost]:
        if shape not in self._costs:
            self._costs[shape] = self._estimate(shape)
        return self._costs[shape]

    def _estimate(self, shape: Shape) -> tuple[Cost, Cost]:
        samples = self._samples.get(shape)
        if samples is not None and samples.trusted:
            cost = Cost(samples.now, samples.now)
            return cost, cost
        near = self._near(shape)
        if samples is not None:
            expected = max(near.lower, min(samples.now, near.upper))
            cost = Cost(expected, max(expected, *samples.latest))
            return cost, cost
        grown = min(near.grown, near.upper)
        if near.by_prior and near.upper < math.inf:
            grown = min(CHANGED * near.expected, near.upper)
        cost = Cost(near.expected, max(near.expected, grown))
        return cost, cost if near.by_prior else Cost(near.lower, grown)

    def _near(self, shape: Shape) -> _Near:
        """Return bounds and an estimate from the other measured shapes."""
        nodes = math.prod(shape)
        points = sorted(
            _Point(math.prod(key), key, samples.now, samples.trusted)
            for key, samples in self._samples.items()
            if key != shape
        )
        fewer = [point for point in points if point.nodes <= nodes]
        wider = points[len(fewer) :]
        upper = min((point.seconds for point in wider), default=math.inf)
        if not fewer:
            if not wider:
                return _Near(0.0, upper, math.inf, self._by_prior(shape), bool(self.prior))
            share = self._ratio(shape, wider[0].shape) if self.prior else 1.0
            return _Near(0.0, upper, math.inf, upper * min(share, 1.0), False)
        sure = max((point.seconds for point in fewer if point.trusted), default=0.0)
        # few samples of the slowest count as long as nothing wider was faster
        lower = max(sure, min(max(point.seconds for point in fewer), upper))
        last = fewer[-1]
        peer = wider[0] if wider else next((o for o in fewer[::-1] if o.nodes < last.nodes), None)
        by_prior = bool(self.prior) and (peer is None or self._is_right(last, peer))
        if by_prior:
            expected = last.seconds * self._ratio(shape, last.shape)
        elif peer is None or peer.nodes == last.nodes:
            expected = last.seconds
        else:
            slope = (peer.seconds - last.seconds) / (peer.nodes - last.nodes)
            expected = last.seconds + max(slope, 0.0) * (nodes - last.nodes)
        grown = last.seconds * nodes / last.nodes if nodes <= STEP * last.nodes else math.inf
        return _Near(lower, upper, grown, max(min(expected, upper), lower), by_prior)

    def _is_right(self, first: _Point, second: _Point) -> bool:
        """Whether the prior is right about how the times of two measured shapes compare."""
        expected = self._ratio(first.shape, second.shape)
        return abs(math.log(first.seconds / second.seconds / expected)) < RIGHT

    def _ratio(self, shape: Shape, base: Shape) -> float:
        return self._by_prior(shape) / self._by_prior(base)

    def _by_prior(self, shape: Shape) -> float:
        """Return the prior's seconds of the cheapest shape that holds this one; 0 without prior."""
        if not self.prior:
            return 0.0
        if shape not in self._held:
            rows, nodes = shape
            holding = [key for key in self.prior if key[0] >= rows and key[1] >= nodes]
            largest = max(self.prior, key=math.prod)
            calls = math.ceil(rows / largest[0]) * math.ceil(nodes / largest[1])
            self._held[shape] = min(
                (self.prior[key] for key in holding), default=calls * self.prior[largest]
            )
        return self._held[shape]


class _Near(NamedTuple):
    """Bounds and an estimate, in seconds, for a shape between measured ones."""

    lower: float  # of the slowest shape with fewer nodes
    upper: float  # of the fastest shape with more nodes
    grown: float  # in proportion to nodes, from the next narrower shape; infinite beyond STEP
    expected: float
    by_prior: bool  # whether the prior is used here


class _Point(NamedTuple):
    nodes: int  # sum over all rows
    shape: Shape
    seconds: float
    trusted: bool


class _Samples:
    """The latest samples of one shape.

    at: serial number of the latest sample
    trusted: whether there are enough samples
    pace: the narrowest shape of as many rows, and its seconds when the last sample was taken
    """

    def __init__(self) -> None:
        self.latest: deque[float] = deque(maxlen=LATEST)
        self.mean, self.at, self.trusted = 0.0, 0, False
        self.pace = self, 0.0

    @property
    def now(self) -> float:
        """Return the seconds under the present load, assumed to slow all shapes by one factor."""
        narrowest, before = self.pace
        return self.mean * (narrowest.mean / before) if before else self.mean

    def add(self, seconds: float, at: int) -> None:
        changed = self.latest and not 1 / CHANGED < seconds / self.mean < CHANGED
        if changed and at - self.at > STALE:
            self.latest.clear()  # the machine has changed since
        self.latest.append(seconds)
        self.at, self.trusted = at, len(self.latest) >= TRUSTED
        self.mean = typical(self.latest)
