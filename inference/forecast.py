"""What a token would take under each architecture, for every tree that a round could have. Pure.

From times, and from what such trees would have brought on the text of late (inference/hindsight.py): a forecast for comparing, which
the rounds themselves then set right. With the closed forms of inference/planner.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from inference.hindsight import DEPTHS, LEAST_VALUES, FloatArray, Hindsight, look_back
from inference.objective import Effort
from inference.planner import Round, fused_time, synchronous_time

TARGET_ONLY, FUSED, DISTRIBUTED = "target-only", "fused", "distributed"
"""Architectures, as Describe and reports name them."""

ROUND_BYTES, NODE_BYTES, VERDICT_BYTES = 60.0, 4.0, 30.0
"""Of a round's messages with gRPC's framing: fixed, and for each node (benchmarks/engine.py)."""

SELDOM = 0.01
"""How often a path has to come to a tree's deepest level: beyond it another depth makes no difference."""

WIDEST_POWER = 10
"""Wider calls take as long as one of 1,024 nodes: nobody would bet on so many outcomes."""

Seconds = Callable[[int], float]


@dataclass(frozen=True)
class Situation:
    """path: chances that the draft gave to the tokens that the target took lately, in their order.  call: seconds of a draft call by width.
    verify: of a forward of the target by nodes.  exchange: what a round loses between the two, by bytes.  queue: waiting at the target.
    call_there: as call, of the draft beside the target; None where there is none; room_there: nodes that it may rank for a tree.
    most_nodes: below the root.  bets: whether there may be any.
    """

    path: FloatArray
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
    seen = look_back(now.path)
    made = [
        Forecast(
            TARGET_ONLY, 0, 0, 0, 1.0, Effort(now.verify(1) + now.queue, 0.0, 0.0, VERDICT_BYTES)
        ),
        _root_alone(now),
    ]
    made += _distributed(now, seen)
    if now.call_there is not None:
        made += _fused(now, seen, now.call_there)
    return made


class Tree(NamedTuple):
    """What is sent in a round, on average. at: its place in [t, d] of a Hindsight.  nodes: below the root.  drafting: seconds of its calls."""

    at: tuple[int, int]
    nodes: int
    depth: int
    tokens: float
    drafting: float


def trees(seen: Hindsight, call: Seconds, most_nodes: int) -> Iterator[Tree]:
    """Those that hold something, and whose depth is not far beyond what they come to. call: seconds of ranking, by width."""
    ranking = _Calls(call).seconds(seen.levels[:, :-1])  # of a level, which makes the next one
    nodes, tokens, drafting = (
        seen.to_depth(seen.levels[:, 1:]),
        1 + seen.to_depth(seen.inside[:, 1:]),
        seen.to_depth(ranking),
    )
    for least in range(len(LEAST_VALUES)):
        for index, depth in enumerate(DEPTHS):
            size = max(round(nodes[least, index]), 1)
            if seen.inside[least, depth] < SELDOM or size > most_nodes:
                break
            yield Tree(
                (least, index),
                size,
                depth,
                float(tokens[least, index]),
                float(drafting[least, index]),
            )


def _root_alone(now: Situation) -> Forecast:
    """Nothing drafted: what is left where the draft is no good, and where the target takes no trees."""
    wall = now.exchange(int(ROUND_BYTES + VERDICT_BYTES)) + now.queue + now.verify(1)
    return Forecast(DISTRIBUTED, 0, 0, 0, 1.0, Effort(wall, 0.0, ROUND_BYTES, VERDICT_BYTES))


def _fused(now: Situation, seen: Hindsight, call: Seconds) -> Iterator[Forecast]:
    for tree in trees(seen, call, now.most_nodes):
        if tree.nodes < now.room_there:
            wall = fused_time(
                Round(tree.drafting, now.verify(tree.nodes + 1), tree.tokens), now.queue
            )
            yield Forecast(
                FUSED,
                tree.nodes,
                tree.depth,
                0,
                tree.tokens,
                Effort(wall, 0.0, 0.0, VERDICT_BYTES / tree.tokens),
            )


def _distributed(now: Situation, seen: Hindsight) -> Iterator[Forecast]:
    """Every tree without bets, and with those that save most time."""
    betting = _Betting(seen, now.call) if now.bets else None
    for tree in trees(seen, now.call, now.most_nodes):
        up = ROUND_BYTES + NODE_BYTES * tree.nodes
        between, verify = (
            now.exchange(int(up + VERDICT_BYTES)) + now.queue,
            now.verify(tree.nodes + 1),
        )
        wall = synchronous_time(Round(tree.drafting, verify, tree.tokens), between)
        best = betting.best(tree, between + verify) if betting else _NO_BETS
        for bets, saved, spent in (_NO_BETS, best) if best.outcomes else (_NO_BETS,):
            effort = Effort(
                wall - saved / tree.tokens,
                (spent + tree.drafting - saved) / tree.tokens,
                up / tree.tokens,
                VERDICT_BYTES / tree.tokens,
            )
            yield Forecast(DISTRIBUTED, tree.nodes, tree.depth, bets, tree.tokens, effort)


class _Bets(NamedTuple):
    """Outcomes that are prepared for, seconds of drafting that this saves on average, and that it takes."""

    outcomes: int
    saved: float
    spent: float


_NO_BETS = _Bets(0, 0.0, 0.0)


class _Betting:
    """Preparing for what a round may come to: a call for what may follow the deepest nodes, then one a level under all bets."""

    def __init__(self, seen: Hindsight, call: Seconds) -> None:
        calls, depths, levels = _Calls(call), np.array(DEPTHS), seen.levels[:, :-1]
        ranking = calls.seconds(seen.levels)  # [t, l]
        each = calls.seconds(seen.bets[..., None] * levels[:, None, None, :])  # [t, d, b, l]
        each = np.where(np.arange(levels.shape[1]) >= depths[:, None, None], math.inf, each)
        self._spent = ranking[:, depths, None, None] + np.cumsum(each, axis=-1)
        self._saved = seen.hits[..., None] * np.cumsum(ranking[:, None, None, :-1], axis=-1)
        self._counts = np.round(seen.bets).astype(np.int64)  # [t, d, b]

    def best(self, tree: Tree, away: float) -> _Bets:
        """As many levels as there is time for while the round is `away` for so many seconds."""
        counts, spent = self._counts[tree.at], self._spent[tree.at]
        levels = (spent <= away).sum(axis=-1)  # [b]
        saved = np.where(
            levels * counts > 0, self._saved[tree.at][np.arange(len(levels)), levels - 1], 0.0
        )
        bets = int(saved.argmax())
        return (
            _Bets(int(counts[bets]), float(saved[bets]), float(spent[bets, levels[bets] - 1]))
            if saved[bets]
            else _NO_BETS
        )


class _Calls:
    """Seconds of calls of a draft whose widths are known on average only: rounded up to a power of two, as most devices do."""

    def __init__(self, call: Seconds) -> None:
        self._table = np.array([call(1 << power) for power in range(WIDEST_POWER + 1)])

    def seconds(self, widths: FloatArray) -> FloatArray:
        """Of a call for each; a width below 1 means that the call is seldom needed."""
        powers = np.ceil(np.log2(np.maximum(widths, 1.0))).astype(np.int64)
        return np.asarray(np.minimum(widths, 1.0) * self._table[np.minimum(powers, WIDEST_POWER)])
