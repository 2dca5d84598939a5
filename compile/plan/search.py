"""Chooses the few graphs that serve a load with the least work.

It solves an integer program, with a bound that says how far from the best the answer can be. The
cost of a shape comes in as a function (counted or measured times), so nothing here knows models or
devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import NDArray

from compile.plan.workload import Calls, CallShape, Limits
from inference.errors import InvalidRequest
from inference.extras import require

Cost = Callable[[CallShape], float]
Floats = NDArray[np.float64]
_SIZES = 14
"""Most sizes tried on one axis, besides powers of two. Further sizes are rounded up to these."""
_PREFILL_STEP, _SLOT_STEP = 16, 64
_MOST_SECONDS = 60.0
"""Seconds that the solver may take. It then answers with its best so far. Plans for the loads in
benchmarks/loads took 6 at most.
"""
_TOLERANCE = 1e-7  # tolerance of an optimum: the solver computes in floating point
_SLACK = 1e-9  # slack of a budget: sums of seconds in another order differ in the last digits
_SCALE = 1e4  # scales the objective: the solver's tolerances are absolute, seconds are small


@dataclass(frozen=True)
class BuildBudget:
    """Limits of a build: number of graphs and compile time."""

    graphs: int  # greedy and sampled counted apart
    seconds: float = float("inf")  # compile time in all
    of: Cost = field(default=lambda shape: 0.0)  # seconds of one graph of a shape
    samplings: int = 2  # graphs that a verify shape is built as: greedy, sampled

    def count(self, shape: CallShape) -> int:
        """Number of graphs that a shape is built as. Prompts are always greedy."""
        return 1 if shape.prefill else self.samplings

    def rows(self, shapes: Sequence[CallShape]) -> tuple[Floats, Floats]:
        """The budget as linear constraints: what each shape takes of graphs and of seconds [2,
        shapes], and how much there is [2]. The row of seconds is left out where they are not
        limited.
        """
        graphs = [float(self.count(shape)) for shape in shapes]
        seconds = [self.count(shape) * self.of(shape) for shape in shapes]
        limited = 1 if math.isinf(self.seconds) else 2
        room = np.array([self.graphs, self.seconds][:limited]) + _SLACK
        return np.array([graphs, seconds][:limited]), room

    def affords(self, shapes: Sequence[CallShape]) -> bool:
        takes, room = self.rows(shapes)
        return bool((takes.sum(axis=1) <= room).all())


@dataclass(frozen=True)
class Plan:
    """The graphs to build, and what the load's mean session costs with them."""

    shapes: tuple[CallShape, ...]
    expected: float  # cost with these graphs
    exact: float  # cost without any padding
    bound: float  # no choice of the sizes tried, within the budget, costs less

    @property
    def padding(self) -> float:
        """Cost that padding adds, as a share of the cost without."""
        return self.expected / self.exact - 1 if self.exact else 0.0

    @property
    def optimal(self) -> bool:
        return self.expected <= self.bound * (1 + _TOLERANCE)


def plan(
    calls: Calls,
    limits: Limits,
    cost: Cost,
    budget: BuildBudget,
    sizes: Iterable[CallShape] | None = None,
) -> Plan:
    """The shapes that serve `calls`, and whatever else the limits allow, at the least expected
    cost.

    sizes: shapes to choose from (default: every combination of the sizes that occur, rounded up to
    a few)
    """
    required = tuple(dict.fromkeys(limits.required()))
    shapes = list(dict.fromkeys([*required, *(grid(calls, limits) if sizes is None else sizes)]))
    if not budget.affords(required):
        raise InvalidRequest(_too_small(required, budget))
    costs = _costs(calls, shapes, cost)
    chosen, bound = _choose(costs, shapes, budget, forced=len(required))
    expected = float(costs[:, chosen].min(axis=1).sum())
    exact = sum(weight * cost(call) for call, weight in calls.items())
    used = {chosen[position] for position in costs[:, chosen].argmin(axis=1).tolist()}
    used.update(range(len(required)))
    return Plan(
        tuple(sorted(shapes[index] for index in used)), expected, exact, min(bound, expected)
    )


def serving(shapes: Iterable[CallShape], call: CallShape, cost: Cost) -> CallShape:
    """The cheapest of the shapes that serves a call. Raises ValueError when none does."""
    return min((shape for shape in shapes if shape.serves(call)), key=cost)


def grid(calls: Calls, limits: Limits) -> list[CallShape]:
    """Every combination of the sizes that occur, rounded up to a few sizes an axis; the limits
    are among them. Another size would cost more than the largest that occurs below it.
    """
    shapes: list[CallShape] = []
    for prefill in (True, False):
        steps = ((1, 1), (2, _PREFILL_STEP if prefill else 1), (3, _SLOT_STEP))
        weights = {call: weight for call, weight in calls.items() if call.prefill == prefill}
        most = [shape for shape in limits.required() if shape.prefill == prefill]
        axes = [
            _sizes(
                [(call[axis], weight) for call, weight in weights.items()],
                {shape[axis] for shape in most},
                step,
            )
            for axis, step in steps
        ]
        shapes += [CallShape(prefill, *sizes) for sizes in product(*axes)]
    return shapes


def _sizes(found: Sequence[tuple[int, float]], needed: set[int], step: int) -> list[int]:
    """The needed sizes and all that occur, as multiples of `step`. Of too many, weighted quantiles
    and powers of two.
    """
    found = [(min(-(-size // step) * step, max(needed)), weight) for size, weight in found]
    distinct = sorted({size for size, _ in found})
    if len(distinct) > _SIZES:
        order = sorted(found)
        shares = np.cumsum([weight for _, weight in order])
        marks = np.searchsorted(shares, shares[-1] * np.arange(1, _SIZES + 1) / _SIZES)
        quantiles = {order[min(int(mark), len(order) - 1)][0] for mark in marks}
        distinct = sorted(
            quantiles
            | {
                1 << exponent
                for exponent in range(4, max(needed).bit_length())
                if 1 << exponent <= distinct[-1]
            }
        )
    return sorted({*distinct, *needed})


def _costs(calls: Calls, shapes: Sequence[CallShape], cost: Cost) -> Floats:  # [demands, shapes]
    """The cost of each demand on each shape; infinite where it does not fit.

    Calls that the same shapes serve are one demand. Raises InvalidRequest for a call that no shape
    serves.
    """
    table = np.array(shapes, dtype=np.int64)
    costs = np.array([cost(shape) for shape in shapes])
    demands: dict[bytes, float] = {}
    for call, weight in calls.items():
        fits = (table[:, 0] == call.prefill) & (table[:, 1:] >= np.array(call[1:])).all(axis=1)
        if not fits.any():
            raise InvalidRequest(f"the load has a call beyond the limits: {call}")
        demands[fits.tobytes()] = demands.get(fits.tobytes(), 0.0) + weight
    return np.array(
        [
            np.where(np.frombuffer(fits, dtype=np.bool_), weight * costs, np.inf)
            for fits, weight in demands.items()
        ]
    )


def _choose(
    costs: Floats, shapes: Sequence[CallShape], budget: BuildBudget, forced: int
) -> tuple[list[int], float]:
    """The affordable shapes at which the demands cost least, and a lower bound of that cost. The
    first `forced` shapes are always among them.

    It is a p-median problem with budgets. built[s] says whether a shape is built. served[d, s] says
    which part of a demand runs on it, for pairs that save something over the forced shapes.
    """
    require("compile", "choosing graphs for a load")
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    alone = costs[:, :forced].min(axis=1)  # [demands]
    saved = np.maximum(alone[:, None] - costs, 0.0)
    demand, shape = np.nonzero(saved)  # indices of each pair
    count, pairs = len(shapes), len(demand)
    if not pairs:
        return list(range(forced)), float(alone.sum())
    scale = _SCALE / alone.sum()
    pair, ones = count + np.arange(pairs), np.ones(pairs)
    size = count + pairs
    once = csr_array((ones, (demand, pair)), shape=(len(alone), size))
    only_if_built = csr_array(
        (np.r_[ones, -ones], (np.tile(np.arange(pairs), 2), np.r_[pair, shape])),
        shape=(pairs, size),
    )
    takes, room = budget.rows(shapes)
    found = milp(
        np.r_[np.zeros(count), -saved[demand, shape] * scale],
        integrality=np.r_[np.ones(count), np.zeros(pairs)],
        bounds=Bounds(np.r_[np.ones(forced), np.zeros(size - forced)], np.ones(size)),
        constraints=[
            LinearConstraint(once, ub=1.0),
            LinearConstraint(only_if_built, ub=0.0),
            LinearConstraint(np.pad(takes, ((0, 0), (0, pairs))), ub=room),
        ],
        options={"mip_rel_gap": 0.0, "time_limit": _MOST_SECONDS},
    )
    if found.x is None:  # out of time before the first answer
        return list(range(forced)), 0.0
    chosen = [index for index in range(count) if index < forced or found.x[index] > 0.5]
    return chosen, float(alone.sum() + found.mip_dual_bound / scale)


def _too_small(required: Sequence[CallShape], budget: BuildBudget) -> str:
    takes, room = budget.rows(required)
    need, have = (
        " and ".join(
            f"{size:.0f} graphs" if unit == 0 else f"{size / 60:.0f} minutes"
            for unit, size in enumerate(sizes)
        )
        for sizes in (takes.sum(axis=1), room)
    )
    return (
        f"a target needs {need} at least (prompts, the largest tree, the target alone): the "
        f"budget is {have}"
    )
