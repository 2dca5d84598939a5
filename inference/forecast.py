"""What a token would take under each architecture, for every tree that a round could have. Pure.

From times, and from how often the target takes the draft's guess of each rank, whatever the context: a forecast for comparing, which
the rounds themselves then set right. Closed forms of inference/planner.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from inference.objective import Effort
from inference.planner import Round, fused_time, proactive_time, synchronous_time
from inference.policy import BestFirst, best_static_tree

TARGET_ONLY, FUSED, DISTRIBUTED = "target-only", "fused", "distributed"
"""Architectures, as Describe and reports name them."""

DEPTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24)
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 32, 63)
BETS = (0, 1, 4, 8, 16, 32, 64)
"""Depths, nodes below the root and bets that are looked at."""

ROUND_BYTES, NODE_BYTES, VERDICT_BYTES = 60.0, 4.0, 30.0
"""Of a round's messages with gRPC's framing: fixed, and for each node (benchmarks/engine.py)."""

Seconds = Callable[[int], float]


@dataclass(frozen=True)
class Situation:
    """rates: [rank] how often the target's token is the draft's guess of that rank.  call: seconds of a draft call by width.
    verify: of a forward of the target by nodes.  exchange: what a round loses between the two, by bytes.  queue: waiting at the target.
    call_there: as call, of the draft beside the target; None where there is none; room_there: nodes that it may rank for a tree.
    most_nodes: below the root.  bets: whether there may be any.
    """

    rates: tuple[float, ...]
    call: Seconds
    verify: Seconds
    exchange: Seconds
    queue: float
    call_there: Seconds | None
    room_there: int
    most_nodes: int
    bets: bool = True


class Forecast(NamedTuple):
    """nodes: below the root.  bets: outcomes that are prepared for.  tokens: of a round.  effort: of a token."""

    architecture: str
    nodes: int
    depth: int
    bets: int
    tokens: float
    effort: Effort

    @property
    def tokens_per_second(self) -> float:
        return 1 / self.effort.wall if self.effort.wall else math.inf

    @property
    def words(self) -> str:
        """The setting as a person reads it."""
        if self.architecture == TARGET_ONLY:
            return TARGET_ONLY
        bets = f", {self.bets} bets" if self.bets else ""
        return f"{self.architecture}, {self.nodes} nodes of depth {self.depth}{bets}"


def forecasts(now: Situation) -> list[Forecast]:
    """Of every architecture that is possible, in every setting that is looked at; target-only first."""
    alone = now.verify(1) + now.queue
    made = [Forecast(TARGET_ONLY, 0, 0, 0, 1.0, Effort(alone, 0.0, 0.0, VERDICT_BYTES))]
    for shape in shapes(now.rates, min(now.most_nodes, max(SIZES))):
        made += _distributed(now, shape)
        if shape.nodes and now.call_there is not None and BestFirst(shape.nodes, shape.depth).most_ranked <= now.room_there:
            there = Round(shape.drafting(now.call_there), now.verify(shape.nodes + 1), shape.tokens)
            wall = fused_time(there, now.queue)
            made.append(Forecast(FUSED, shape.nodes, shape.depth, 0, shape.tokens, Effort(wall, 0.0, 0.0, VERDICT_BYTES / shape.tokens)))
    return made


def _distributed(now: Situation, shape: Shape) -> Iterator[Forecast]:
    up = ROUND_BYTES + NODE_BYTES * shape.nodes
    between = now.exchange(int(up + VERDICT_BYTES)) + now.queue
    made = Round(shape.drafting(now.call), now.verify(shape.nodes + 1), shape.tokens)
    for bets in BETS if now.bets and shape.nodes else BETS[:1]:
        hit = shape.hit(bets)
        ahead = shape.depth * now.call(min(bets, max(shape.widths))) if bets else 0.0
        in_time = proactive_time(Round(ahead, made.verify, made.tokens), between, 1.0)
        wall = hit * in_time + (1 - hit) * synchronous_time(made, between)
        effort = Effort(wall, (ahead + (1 - hit) * made.drafting) / shape.tokens, up / shape.tokens, VERDICT_BYTES / shape.tokens)
        yield Forecast(DISTRIBUTED, shape.nodes, shape.depth, bets, shape.tokens, effort)


@dataclass(frozen=True)
class Shape:
    """A best static tree, summed up. widths: [level] nodes ranked in that call.  outcomes: chances of what a round may come to, likeliest first."""

    nodes: int
    depth: int
    tokens: float
    widths: tuple[int, ...]
    outcomes: tuple[float, ...]

    def drafting(self, call: Seconds) -> float:
        """Seconds of the calls that rank it, one a level."""
        return sum(call(width) for width in self.widths)

    def hit(self, bets: int) -> float:
        """Chance that a round ends in one of the likeliest outcomes: the cumulated ones."""
        return self.outcomes[min(bets, len(self.outcomes)) - 1] if bets and self.outcomes else 0.0


def shapes(rates: Sequence[float], most_nodes: int) -> tuple[Shape, ...]:
    """For every depth and size that is looked at, no nodes first. Rates are rounded, so that learning a little does not make everything anew."""
    return _shapes(_in_hundredths(rates), most_nodes)


def _in_hundredths(rates: Sequence[float]) -> tuple[float, ...]:
    """Of about the same sum, which is not above 1 then either: what is cut off goes to those that lost most. Their order stays."""
    exact = [100 * max(rate, 0.0) for rate in rates]
    whole = [int(rate) for rate in exact]
    lost = [round(rate - floor, 6) for rate, floor in zip(exact, whole, strict=True)]
    for index in sorted(range(len(exact)), key=lost.__getitem__, reverse=True)[: round(sum(exact)) - sum(whole)]:
        whole[index] += 1
    return tuple(rate / 100 for rate in whole)


@lru_cache(maxsize=64)
def _shapes(rates: tuple[float, ...], most_nodes: int) -> tuple[Shape, ...]:
    rates = tuple(rate for rate in rates if rate > 0)
    alone = Shape(0, 0, 1.0, (), ())  # nothing drafted: also where the draft is no good, and where the target takes no trees
    if not rates or most_nodes < 1:
        return (alone,)
    sizes = sorted({*(size for size in SIZES if size <= most_nodes), most_nodes})
    seen = {(shape.nodes, shape.depth): shape for depth in reversed(DEPTHS) for shape in _of_depth(rates, sizes, depth)}
    return (alone, *seen.values())


def _of_depth(rates: tuple[float, ...], sizes: Sequence[int], depth: int) -> Iterator[Shape]:
    """The best trees of these sizes: each is the beginning of the next."""
    edges = best_static_tree(rates, sizes[-1], depth)
    values, inside = np.ones(len(edges) + 1), np.zeros(len(edges) + 1, dtype=np.int64)  # of each node, and its children in the tree
    parents = [set[int]() for _ in range(depth)]
    for edge in edges:
        values[edge.node] = values[edge.parent] * rates[edge.rank]
        inside[edge.parent] += 1
        parents[edge.depth - 1].add(edge.parent)
        if edge.node in sizes or edge.node == len(edges):
            known, ranks = values[: edge.node + 1], np.arange(len(rates))
            outside = (known[:, None] * np.array(rates))[ranks >= inside[: edge.node + 1, None]]
            outcomes = np.cumsum(np.sort(outside)[::-1][: max(BETS)])
            widths = tuple(len(level) for level in parents if level)
            yield Shape(edge.node, len(widths), float(known.sum()), widths, tuple(outcomes.tolist()))
