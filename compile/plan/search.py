"""Choosing shapes under a budget so that demands cost least in all: a p-median problem with sizes,
solved to a known gap.

A first set by greedy addition and swaps; a bound by Lagrange multipliers (every demand is paid
`prices` for being served, so shapes can be judged one by one); then branch and bound on what the
bound leaves open. Everything is arrays: [demands, shapes].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
_ROUNDS, _VISITS = 200, 1000
_EXACT = 1 - 1e-9
_SLACK = 1e-9  # sums of seconds in another order differ in the last digits


@dataclass(frozen=True)
class Problem:
    """costs: of a demand on a shape, infinite where it does not fit.  graphs, seconds: what a
    shape takes of the budget.
    """

    costs: Floats  # [demands, shapes]
    graphs: Floats  # [shapes]
    seconds: Floats  # [shapes]
    most_graphs: float
    most_seconds: float

    def expected(self, chosen: Sequence[int]) -> float:
        return float(self.costs[:, chosen].min(axis=1).sum())

    def affordable(self, chosen: Sequence[int]) -> bool:
        return bool(
            self.graphs[chosen].sum() <= self.most_graphs + _SLACK
            and self.seconds[chosen].sum() <= self.most_seconds + _SLACK
        )

    def fits(self, chosen: Sequence[int]) -> Flags:  # [shapes]
        """The shapes that the budget allows beside `chosen`."""
        by_graphs = self.graphs <= self.most_graphs - self.graphs[chosen].sum() + _SLACK
        return np.asarray(
            by_graphs & (self.seconds <= self.most_seconds - self.seconds[chosen].sum() + _SLACK)
        )

    def gains(self, chosen: Sequence[int]) -> Floats:  # [shapes]
        """What adding each shape alone would save."""
        present = self.costs[:, chosen].min(axis=1, keepdims=True)
        saved: Floats = np.maximum(present - self.costs, 0).sum(axis=0)
        return saved

    def fill(self, chosen: Sequence[int], gains: Floats) -> Filled:
        """The greatest sum of gains beside `chosen`, when the last shape may be taken in part;
        of two budgets the one that binds.
        """
        by_graphs = _fill(gains, self.graphs, self.most_graphs - self.graphs[chosen].sum())
        if np.isinf(self.most_seconds):
            return by_graphs
        by_seconds = _fill(gains, self.seconds, self.most_seconds - self.seconds[chosen].sum())
        return min(by_graphs, by_seconds, key=lambda filled: filled.gain)


class Filled(NamedTuple):
    """taken: share of each shape.  least: what the room taken by each shape would have gained
    otherwise.
    """

    gain: float
    taken: Floats  # [shapes]
    least: Floats  # [shapes]


class Solution(NamedTuple):
    """bound: no affordable set that holds the forced shapes costs less."""

    chosen: list[int]
    bound: float


class _Prices(NamedTuple):
    """The best multipliers found: their bound, their sum, what each shape earns at them, and
    shapes that could still be in the best set.
    """

    bound: float
    total: float
    earned: Floats  # [shapes]
    open: Flags  # [shapes]


def solve(problem: Problem, forced: Sequence[int]) -> Solution:
    """The cheapest affordable set that holds `forced`, which serves every demand; exact unless
    the search runs out of visits.
    """
    best = _improve(problem, forced)
    prices = _prices(problem, forced, best)
    return _branch(problem, list(forced), best, prices)


def _fill(gains: Floats, sizes: Floats, room: float) -> Filled:
    density = np.divide(gains, sizes, out=np.full_like(gains, np.inf), where=sizes > 0)
    order = np.argsort(-density)
    before = np.cumsum(sizes[order]) - sizes[order]
    share = np.clip(
        np.divide(room - before, sizes[order], out=np.ones_like(gains), where=sizes[order] > 0),
        0,
        1,
    )
    taken = np.empty_like(gains)
    taken[order] = share
    cut = order[share < 1]
    edge = float(density[cut[0]]) if len(cut) else 0.0
    return Filled(float((gains * taken).sum()), taken, edge * sizes)


def _improve(problem: Problem, forced: Sequence[int]) -> list[int]:
    """Add what saves most for its size until nothing fits, then take one out and refill while
    that helps.
    """
    chosen = _add(problem, list(forced))
    while True:
        without = [[kept for kept in chosen if kept != out] for out in chosen if out not in forced]
        trials = [_add(problem, rest) for rest in without] + [
            _add(problem, rest, by_size=False) for rest in without
        ]
        best = min(trials, key=problem.expected, default=chosen)
        if problem.expected(best) >= problem.expected(chosen) * _EXACT:
            return chosen
        chosen = best


def _add(problem: Problem, chosen: list[int], *, by_size: bool = True) -> list[int]:
    while True:
        gains = problem.gains(chosen)
        fits = problem.fits(chosen)
        worth = np.where(fits, gains / problem.graphs if by_size else gains, 0)
        index = int(worth.argmax())
        if worth[index] <= 0:
            return chosen
        chosen = [*chosen, index]


def _prices(problem: Problem, forced: Sequence[int], best: Sequence[int]) -> _Prices:
    """Subgradient ascent from what the demands cost at present; steps shrink when they do not
    help.
    """
    least, step = problem.expected(best), 1.0
    paid = problem.costs[:, best].min(axis=1)
    found = _Prices(
        -np.inf, 0.0, np.zeros(len(problem.graphs)), np.ones(len(problem.graphs), dtype=np.bool_)
    )
    stalled = 0
    for _ in range(_ROUNDS):
        served = np.minimum(problem.costs - paid[:, None], 0)
        earned = -served.sum(axis=0)
        filled = problem.fill(forced, _without(earned, forced))
        bound = float(paid.sum() - earned[list(forced)].sum() - filled.gain)
        possible = bound - (earned - filled.least) * (filled.taken < 1) < least * _EXACT
        improved, stalled = bound > found.bound, 0 if bound > found.bound else stalled + 1
        still = found.open & (possible | (filled.taken > 0))
        found = (
            _Prices(bound, float(paid.sum()), earned, still)
            if improved
            else found._replace(open=still)
        )
        if stalled == 8:
            step, stalled = step / 2, 0
        taken = filled.taken.copy()
        taken[list(forced)] = 1
        slope: Floats = 1.0 - (served < 0).astype(np.float64) @ taken
        size = float(slope @ slope)
        if size == 0 or bound >= least * _EXACT:
            break
        paid = paid + step * (least - bound) / size * slope
    return found


def _without(earned: Floats, chosen: Sequence[int]) -> Floats:
    rest: Floats = earned.copy()
    rest[list(chosen)] = 0
    return rest


def _branch(problem: Problem, forced: list[int], best: list[int], prices: _Prices) -> Solution:
    """Depth first, with the shape first that saves most."""
    least = problem.expected(best)
    stack = [(prices.bound, forced, prices.open)]
    for _ in range(_VISITS):
        while stack and stack[-1][0] >= least * _EXACT:
            stack.pop()
        if not stack:
            break
        bound, chosen, allowed = stack.pop()
        fits = problem.fits(chosen)
        gains = np.where(allowed & fits, problem.gains(chosen), 0)
        index = int((gains / problem.graphs).argmax())
        if gains[index] <= 0:
            continue
        allowed = (gains > 0) & (np.arange(len(gains)) != index)
        with_it = [*chosen, index]
        if problem.expected(with_it) < least:
            best, least = with_it, problem.expected(with_it)
        stack.append((max(bound, _bound(problem, chosen, allowed, prices)), chosen, allowed))
        stack.append((max(bound, _bound(problem, with_it, allowed, prices)), with_it, allowed))
    return Solution(best, min([least, *(bound for bound, _, _ in stack)]))


def _bound(problem: Problem, chosen: Sequence[int], allowed: Flags, prices: _Prices) -> float:
    """The better of two: a set saves at most the sum of what its shapes save alone; and the
    multipliers'.
    """
    alone = (
        problem.expected(chosen)
        - problem.fill(chosen, np.where(allowed, problem.gains(chosen), 0)).gain
    )
    earned = np.where(allowed, _without(prices.earned, chosen), 0)
    return max(
        alone,
        prices.total - float(prices.earned[list(chosen)].sum()) - problem.fill(chosen, earned).gain,
    )
