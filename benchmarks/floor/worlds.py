"""Worlds that try to make a draft cost its user time: see __main__.py, --worlds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

from benchmarks.floor.laws import Law, Machine
from benchmarks.floor.race import SKILLS, Skill, race, tokens_by
from benchmarks.floor.shared import Sharing, play
from inference.times import Times

Belief = Callable[[Law, int], Times]
"""What the engine believes of a law's times at the start, with so many sessions."""

TOKENS = 256
GENTLE = Law("gentle", lambda nodes: 1.0 + 0.02 * (nodes - 1))
RIGHT = SKILLS["right"]


class UnevenMachine(Machine):
    """A machine on which some forward passes of at least `nodes` nodes take `times` as long."""

    def __init__(self, seed: int, chance: float = 0.3, times: float = 10.0, nodes: int = 2) -> None:
        super().__init__(GENTLE, seed)
        self._share, self._times, self._from = chance, times, nodes
        self._drawn = random.Random(f"{seed} uneven")  # noqa: S311

    def seconds(self, rows: int, nodes: int, now: float) -> float:
        dear = nodes >= self._from and self._drawn.random() < self._share
        return super().seconds(rows, nodes, now) * (self._times if dear else 1.0)


class HotMachine(Machine):
    """A machine that nodes heat and root-only forward passes cool: it is 3.5 times slower for all
    from a heat of HOT on, until it is cold again. smooth: it slows down with the heat
    """

    HOT, SLOWER = 60.0, 3.5

    def __init__(self, seed: int, *, smooth: bool = False) -> None:
        super().__init__(GENTLE, seed)
        self._heat = random.Random(f"{seed} heat").uniform(0, self.HOT)  # noqa: S311
        self._hot, self._smooth = False, smooth

    def seconds(self, rows: int, nodes: int, now: float) -> float:
        warmer = nodes / 4 if nodes > 1 else -1.0
        self._heat = min(max(self._heat + warmer, 0.0), self.HOT)
        self._hot = self._heat == self.HOT or (self._hot and self._heat > 0)
        part = self._heat / self.HOT if self._smooth else float(self._hot)
        return super().seconds(rows, nodes, now) * (1.0 + (self.SLOWER - 1.0) * part)


class DriftingMachine(Machine):
    """A machine whose wide forward passes get 4 times dearer and cheap again, in waves."""

    def __init__(self, seed: int) -> None:
        super().__init__(GENTLE, seed)
        self._phase = seed / 7

    def seconds(self, rows: int, nodes: int, now: float) -> float:
        wave = 2.5 - 1.5 * math.cos(2 * math.pi * (now / self.law.one / 120 + self._phase))
        return super().seconds(rows, nodes, now) * (wave if nodes > 1 else 1.0)


class RecordingMachine(Machine):
    """A GPU at its first start: the first call of a shape runs eagerly, the second is recorded.
    Shapes of up to `planned` nodes were recorded before it listened.
    """

    FIRST_CALLS = (5.0, 15.0)  # what they cost, in replayed ones

    def __init__(self, seed: int, planned: int) -> None:
        super().__init__(GENTLE, seed)
        self._left = {1 << power: [*self.FIRST_CALLS] for power in range(7) if 1 << power > planned}

    def seconds(self, rows: int, nodes: int, now: float) -> float:
        costs = self._left.get(padded := 1 << (nodes - 1).bit_length())
        return super().seconds(rows, padded, now) * (costs.pop(0) if costs else 1.0)


class World(NamedTuple):
    """A machine by its seed, and a draft elsewhere."""

    machine: Callable[[int], Machine]
    skill: Skill = RIGHT


def _even(law: Law) -> Callable[[int], Machine]:
    return lambda seed: Machine(law, seed)


def _buckets(costs: Mapping[int, float]) -> Callable[[int], Machine]:
    """A machine that pads each forward pass to one of these widths."""
    cost = {nodes: costs[min(width for width in costs if width >= nodes)] for nodes in range(1, 65)}
    return _even(Law("buckets", lambda nodes: cost[nodes]))


WORLDS: dict[str, World | Sharing] = {
    "uneven": World(UnevenMachine),
    "uneven-from-8": World(partial(UnevenMachine, nodes=8)),
    "rarely-dear": World(partial(UnevenMachine, chance=0.05, times=40.0)),
    "hot": World(HotMachine),
    "warm": World(partial(HotMachine, smooth=True)),
    "drift": World(DriftingMachine),
    "liar": World(_even(GENTLE), Skill(1.0, (0.05, 0.05), (0.98, 0.98))),
    "modest": World(_even(GENTLE), Skill(1.0, (0.95, 0.95), (0.1, 0.1))),
    "right-until-96": World(_even(GENTLE), RIGHT._replace(works=lambda at: at < 96)),
    "right-from-128": World(_even(GENTLE), RIGHT._replace(works=lambda at: at >= 128)),
    "by-turns": World(_even(GENTLE), RIGHT._replace(works=lambda at: at // 24 % 2 == 0)),
    "buckets": World(_buckets({1: 1.0, 8: 1.1, 16: 3.0, 64: 9.0})),
    "dear-buckets": World(_buckets({1: 1.0, 8: 2.6, 16: 3.0, 64: 3.2})),
    "first-start": World(partial(RecordingMachine, planned=64)),
    "first-start-unplanned": World(partial(RecordingMachine, planned=0)),
    "shared-useless": Sharing(2.0),
    "shared-useless-5x": Sharing(5.0),
    "shared-late": Sharing(1.5, pays_after=12),
    "shared-late-in-a-row": Sharing(1.5, pays_after=12, in_a_row=True),
}


def shares(name: str, belief: Belief, seed: int) -> tuple[float, float, float]:
    """Return the share of target-only's speed that a text keeps: over its first 64 tokens, over
    all, and over the worst 64 in a row.
    """
    world = WORLDS[name]
    if isinstance(world, Sharing):
        one, other = (play(world, TOKENS, seed, drafts=drafts) for drafts in (True, False))
    else:
        one, other = (
            race(machine, belief(machine.law, 1), skill, 1, TOKENS, seed)[0]
            for machine, skill in ((world.machine(seed), world.skill), (world.machine(seed), None))
        )
    by = [0.0, *(tokens_by(other, at) for at in one)]
    windows = (64 / max(by[end] - by[end - 64], 1e-9) for end in range(64, TOKENS + 1))
    return 64 / by[64], TOKENS / by[TOKENS], min(windows)


def lines(
    worlds: Sequence[str], beliefs: Mapping[str, Belief], seeds: Sequence[int]
) -> Iterator[str]:
    """Yield a line for each world, belief and seed."""
    yield f"{'world':<22}{'profile':<10}{'seed':>5}{'64':>8}{TOKENS:>8}{'worst 64':>10}"
    for name, belief, seed in product(worlds, beliefs, seeds):
        first, whole, worst = shares(name, beliefs[belief], seed)
        yield f"{name:<22}{belief:<10}{seed:>5}{first:>8.3f}{whole:>8.3f}{worst:>10.3f}"
