"""Which sessions' trees go into the next forward, how many nodes of each, and whether to wait for more. Pure.

A forward is a rectangle: rows times the largest tree, padded to a bucket. A tree arrives in value order, so a prefix of it is
a tree; cutting a suffix loses the tokens that those nodes would have brought and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Seconds = Callable[[int, int], float]
"""Seconds of a forward of so many rows and nodes, padding included."""

FORGET = 0.97
"""Weight of a round in a session's statistics after the next round."""

FIRST_RATE, FIRST_ROUNDS = 0.8, 4.0
"""What is thought of a node that was never sent, and how many rounds that counts as: well, or it would be cut and never known."""

WORTH_CUTTING = 1.05
LEAST_SAVED = 1e-3
"""How much more a second a smaller forward must bring, and seconds it must save: times are measured, and a cut tree was drafted for nothing."""

WORTH_LEAVING = 1.5
"""The same for letting some wait for the next forward: it pays where one row more doubles what is computed, and hardly elsewhere."""


class Survival:
    """How often a session's node of each index was accepted. Nodes that are cut come slowly back to where they began."""

    def __init__(self, most: int) -> None:
        self._sent: NDArray[np.float64] = np.full(most, FIRST_ROUNDS)
        self._accepted = self._sent * FIRST_RATE

    def count(self, nodes: int, path: Sequence[int]) -> None:
        """Add a round: a tree of `nodes` nodes, the root included, of which `path` was accepted."""
        self._sent[:nodes] *= FORGET
        self._accepted[:nodes] *= FORGET
        self._sent[:nodes] += 1
        self._accepted[list(path)] += 1
        self._accepted[nodes:] += (
            (1 - FORGET) / 3 * (FIRST_RATE * self._sent[nodes:] - self._accepted[nodes:])
        )

    def gains(self, nodes: int) -> NDArray[np.float64]:  # [nodes]
        """[k]: tokens expected of a tree cut after k + 1 nodes; the root alone brings one."""
        rates = self._accepted[:nodes] / self._sent[:nodes]
        rates[0] = 1.0
        return np.cumsum(rates)


class Batch(NamedTuple):
    """Indices into what was ready, and the nodes that no tree exceeds."""

    members: tuple[int, ...]
    nodes: int


def plan_batch(gains: Sequence[NDArray[np.float64]], seconds: Seconds, idle: float) -> Batch:
    """The forward that brings most tokens a second; whoever is oldest (index 0) is part of it.

    gains: of each ready tree, oldest first, Survival.gains.  idle: seconds between two forwards in which there is nothing to do;
    a target with time to spare may compute nodes that a busy one should not.
    """
    sizes = np.array([len(one) for one in gains])
    most = int(sizes.max())
    tokens = np.stack(
        [
            np.concatenate([one, np.full(most - len(one), one[-1])]) if len(one) < most else one
            for one in gains
        ]
    )
    best, best_rate, whole = Batch(tuple(range(len(gains))), most), 0.0, seconds(len(gains), most)
    for nodes in _steps(sizes.tolist()):
        for members, brought, worth in _memberships(sizes, nodes, tokens[:, nodes - 1]):
            cost = seconds(len(members), nodes)
            rate = brought / max(cost + idle, 1e-9)
            if not best_rate or (rate > best_rate * worth and whole - cost >= LEAST_SAVED):
                best, best_rate = Batch(tuple(members), nodes), rate
    return best


def _steps(sizes: Sequence[int]) -> list[int]:
    """These sizes and the powers of two below the largest, most first: sizes that calls are padded to lie close above."""
    most = max(sizes)
    return sorted({*sizes, *(1 << power for power in range(most.bit_length()))}, reverse=True)


def _memberships(
    sizes: NDArray[np.int_], nodes: int, tokens: NDArray[np.float64]
) -> Iterator[tuple[Sequence[int], float, float]]:
    """Who may be part of a forward of so many nodes, the tokens that it brings, and how much better than the best so far it must be.

    Everybody, the oldest few, or the oldest and whose trees need no cut.  tokens: [n], those that each one's tree brings.
    """
    of_oldest = np.cumsum(tokens).tolist()
    for count in _steps([len(sizes)]):
        yield (
            range(count),
            of_oldest[count - 1],
            WORTH_CUTTING if count == len(sizes) else WORTH_LEAVING,
        )
    fitting = [0, *(1 + np.flatnonzero(sizes[1:] <= nodes)).tolist()]
    if 1 < len(fitting) < len(sizes):
        yield fitting, float(tokens[fitting].sum()), WORTH_CUTTING


class Arrival(NamedTuple):
    """A session that will want a forward again: in how many seconds, and the tokens it is expected to get."""

    seconds: float
    tokens: float


def waiting_time(
    tokens: float, rows: int, nodes: int, arrivals: Sequence[Arrival], seconds: Seconds
) -> float:
    """Seconds to wait for others before a forward of `rows` rows that brings `tokens`: 0 unless waiting brings more a second."""
    best_rate, best_wait = tokens / max(seconds(rows, nodes), 1e-9), 0.0
    for joined, arrival in enumerate(sorted(arrivals), start=1):
        tokens += arrival.tokens
        rate = tokens / max(arrival.seconds + seconds(rows + joined, nodes), 1e-9)
        if rate > best_rate:
            best_rate, best_wait = rate, arrival.seconds
    return best_wait
