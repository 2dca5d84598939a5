"""The regime map: which is faster by the closed forms, the target alone or synchronous rounds.

It holds for any acceptance and round trip, with the times that were measured here. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference.drafters.tree_policies import Chain
from inference.times import ForwardTimes
from outrider.compare.closed_forms import best_chain
from outrider.compare.measure import Comparison
from outrider.compare.prediction import Network, made_at_the_target


@dataclass(frozen=True)
class RegimeMap:
    """Times in seconds that the closed forms need."""

    alone: float  # a token of the target by itself
    passes: ForwardTimes  # passes of the target
    level: float  # drafting one more token
    host: float  # a round's time outside both models

    def rounds(self, acceptance: float, round_trip: float) -> float:
        """Seconds a token of synchronous rounds, with the best chain for this acceptance of a
        guess.
        """

        def seconds(length: int) -> float:
            passing = self.passes.seconds(1, length + 1)
            return length * self.level + passing + self.host + round_trip

        return best_chain(acceptance, seconds).time

    def rounds_win(
        self, acceptances: Sequence[float], round_trips: Sequence[float]
    ) -> NDArray[np.bool_]:
        """Whether rounds are faster than the target alone: [acceptance, round trip]."""
        return np.array(
            [[self.rounds(one, trip) < self.alone for trip in round_trips] for one in acceptances]
        )


def regime_map(comparison: Comparison) -> RegimeMap | None:
    """The map, from the costs of chains and target-only; None where either is not known."""
    alone = comparison.alone
    chains = [
        (one.arm.setting.policy.length, one.costs)
        for one in comparison.costs
        if isinstance(one.arm.setting.policy, Chain)
    ]
    if alone is None or not chains:
        return None
    passes = ForwardTimes()
    for known in (alone, *(known for _, known in chains)):
        passes.record(1, round(known.nodes), known.made.verify)
    return RegimeMap(
        alone=made_at_the_target(alone, Network(0.0)),
        passes=passes,
        level=min(known.made.drafting / length for length, known in chains if length),
        host=min(known.host + known.queue for _, known in chains),
    )
