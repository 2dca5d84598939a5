"""The regime map: whether the target alone or synchronous rounds are faster by the closed forms,
for any acceptance and round trip, with the times that were measured here. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference.policy import Chain
from inference.times import ForwardTimes
from outrider.compare.arms import BASELINE
from outrider.compare.closed_forms import best_chain
from outrider.compare.rows import Row

LONGEST_CHAIN = 32


@dataclass(frozen=True)
class RegimeMap:
    """What the closed forms need, in seconds."""

    alone: float  # a token of the target by itself
    passes: ForwardTimes  # of the target
    level: float  # of drafting one more token
    host: float  # of a round outside both models

    def rounds(self, acceptance: float, round_trip: float) -> float:
        """A token in synchronous rounds, with the best chain for this acceptance of a guess."""
        fixed = self.host + round_trip
        return best_chain(
            acceptance,
            lambda length: length * self.level + self.passes.seconds(1, length + 1) + fixed,
            LONGEST_CHAIN,
        ).time

    def rounds_win(
        self, acceptances: Sequence[float], round_trips: Sequence[float]
    ) -> NDArray[np.bool_]:
        """[acceptance, round trip]: whether they are faster than the target alone."""
        return np.array(
            [[self.rounds(one, trip) < self.alone for trip in round_trips] for one in acceptances]
        )


def regime_map(rows: Sequence[Row]) -> RegimeMap | None:
    """From the rounds of these rows; None where no chain or no target-only run tells."""
    alone = [row.costs for row in rows if row.costs and row.arm.architecture.name == BASELINE]
    chains = [
        (row.arm.setting.policy.length, row.costs)
        for row in rows
        if row.costs and isinstance(row.arm.setting.policy, Chain)
    ]
    if not alone or not chains:
        return None
    passes = ForwardTimes()
    for known in (*alone, *(known for _, known in chains)):
        passes.record(1, round(known.nodes), known.made.verify)
    return RegimeMap(
        alone=float(np.mean([one.made.verify + one.host + one.queue for one in alone])),
        passes=passes,
        level=min(known.made.drafting / length for length, known in chains if length),
        host=min(known.host + known.queue for _, known in chains),
    )
