"""Laws of a forward's time, and profiles that are right or wrong about them. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from typing import TypeAlias

from inference.times import Shape

Units = Callable[[int], float]
"""Cost of a forward of so many nodes, all rows together, in forwards of one node."""

Slowed = Callable[[float], float]
"""Factor on a forward that begins at this time, in forwards of one node."""


def _points(points: Mapping[int, float]) -> Units:
    """Interpolate between points, and go on with the last two's slope."""
    known = sorted(points.items())

    def units(nodes: int) -> float:
        pairs = pairwise(known)
        (low, first), (high, second) = next(
            (pair for pair in pairs if nodes <= pair[1][0]), (known[-2], known[-1])
        )
        return first + (second - first) * (nodes - low) / (high - low)

    return units


def _step(at: int, cost: float) -> Units:
    return lambda nodes: 1.0 if nodes < at else cost


def _sawtooth(nodes: int) -> float:
    """Blocks of 8 nodes: a block that has just begun costs more than one that is full."""
    blocks, within = divmod(nodes - 1, 8)
    return 1.0 + 0.35 * blocks + (0.15 * (1 - within / 7) if blocks else 0.0)


def _roofline(nodes: int) -> float:
    """Weights are read for up to 16 nodes; then arithmetic counts."""
    return max(1.0 + 0.01 * nodes, nodes / 16)


@dataclass(frozen=True)
class Law:
    """Times of forwards on one machine.

    one: seconds of a forward of one node
    units: relative cost by nodes
    slowed: factor at a time
    noise: standard deviation of the logarithm of a factor on each forward
    stalls: mean time between pauses of the machine, in forwards of one node; 0 for none
    """

    name: str
    units: Units
    one: float = 0.6
    slowed: Slowed = lambda at: 1.0
    noise: float = 0.0
    stalls: float = 0.0

    def seconds(self, rows: int, nodes: int) -> float:
        """Seconds of a forward on an idle machine, at a text's beginning."""
        return self.one * self.units(rows * nodes)


STALL_SECONDS = 0.3
"""Length of a pause of the machine."""

LAWS = {
    law.name: law
    for law in (
        Law("flat", lambda nodes: 1.0),
        Law("linear", lambda nodes: float(nodes)),
        Law("bf16-avx2", _points({1: 1, 2: 3, 4: 6, 8: 11, 16: 20, 32: 40})),
        Law("22x-at-16", _points({1: 1, 2: 3, 8: 12, 16: 22, 32: 30})),
        Law("flat-8-22x", _step(16, 22.0)),
        Law("flat-8-6x", _step(16, 6.0)),
        Law("4x-at-8", _step(8, 4.0)),
        Law("sawtooth", _sawtooth, 0.1),
        Law("roofline", _roofline, 0.03),
        Law("noise", _roofline, 0.06, noise=0.15),
        Law("stalls", _roofline, 0.06, stalls=60.0),
        Law("neighbour", _roofline, 0.1, lambda at: 2.0 if int(at / 25) % 2 else 1.0),
        Law("drift", _roofline, 0.1, lambda at: 1.0 + 2.0 * min(at / 256, 1.0)),
        Law("linear-neighbour", float, 0.25, lambda at: 2.0 if int(at / 25) % 2 else 1.0),
        Law("linear-drift", float, 0.25, lambda at: 1.0 + 2.0 * min(at / 256, 1.0)),
        Law("dear-2", _points({1: 1, 2: 1.3, 16: 1.35, 64: 2}), 0.1),
    )
}
"""The laws of the study, by name."""

Profile: TypeAlias = dict[Shape, float]

PROFILES: dict[str, Callable[[Shape, float], float]] = {
    "right": lambda shape, seconds: seconds,
    "all-3x-dear": lambda shape, seconds: 3 * seconds,
    "all-10x-cheap": lambda shape, seconds: seconds / 10,
    "wide-3x-cheap": lambda shape, seconds: seconds / _wide(shape, 3),
    "wide-10x-cheap": lambda shape, seconds: seconds / _wide(shape, 10),
    "wide-3x-dear": lambda shape, seconds: seconds * _wide(shape, 3),
    "wide-10x-dear": lambda shape, seconds: seconds * _wide(shape, 10),
}
"""What a kept profile says of a shape, from its right seconds."""


def _wide(shape: Shape, factor: float) -> float:
    """1 for one node, the factor from 8 nodes on."""
    return float(factor ** min(math.log2(shape[1]) / 3, 1.0))


class Machine:
    """Seconds of each forward: the law, and the machine's pauses and noise, the same each time.

    paused: seconds of pauses so far
    """

    def __init__(self, law: Law, seed: int) -> None:
        self.paused = 0.0
        self.law = law
        self._chance = random.Random(f"{seed} pauses")  # noqa: S311
        self._next_pause = self._drawn_pause(0.0)
        self._noise = random.Random(f"{seed} noise")  # noqa: S311

    def seconds(self, rows: int, nodes: int, now: float) -> float:
        """Seconds of a forward that begins at `now` seconds."""
        law = self.law
        seconds = law.seconds(rows, nodes) * law.slowed(now / law.one)
        if law.noise:
            seconds *= math.exp(self._noise.gauss(0.0, law.noise))
        while now + seconds > self._next_pause:
            seconds += STALL_SECONDS
            self.paused += STALL_SECONDS
            self._next_pause = self._drawn_pause(self._next_pause + STALL_SECONDS)
        return seconds

    def _drawn_pause(self, after: float) -> float:
        law = self.law
        if not law.stalls:
            return math.inf
        return after + self._chance.expovariate(1 / (law.stalls * law.one))


@cache
def profile_of(law: Law, sessions: int, nodes: int) -> Profile:
    """The right seconds of all shapes up to so many rows and nodes that a profile has."""
    widths = [1 << power for power in range(nodes.bit_length())]
    counts = [1 << power for power in range(sessions.bit_length())]
    return {shape: law.seconds(*shape) for shape in product(counts, widths)}
