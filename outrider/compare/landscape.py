"""Whether the target alone or synchronous rounds are faster by the closed forms, for any acceptance
and round trip, with the times that were measured here. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference.times import ForwardTimes
from outrider.compare.arms import ARCHITECTURES, BASELINE
from outrider.compare.closed_forms import best_chain
from outrider.compare.prediction import Costs

ROUNDS = "synchronous rounds"
LONGEST_CHAIN = 32


@dataclass(frozen=True)
class Landscape:
    """Seconds. alone: a token of the target by itself.  passes: of the target.  level: of drafting
    one more token.  host: of a round outside both models.
    """

    alone: float
    passes: ForwardTimes
    level: float
    host: float

    def times(self, acceptance: float, round_trip: float) -> dict[str, float]:
        """Seconds a token of each architecture, with the best chain for this acceptance of every
        guess.
        """
        return {
            BASELINE: self.alone,
            ROUNDS: self._best(acceptance, self.level, self.host + round_trip),
        }

    def fastest(
        self, acceptances: Sequence[float], round_trips: Sequence[float], among: Sequence[str]
    ) -> NDArray[np.int_]:
        """[acceptance, round trip]: index into `among`."""
        grid = [
            [self.times(acceptance, trip) for trip in round_trips] for acceptance in acceptances
        ]
        times = np.array([[[cell[name] for name in among] for cell in line] for line in grid])
        return np.asarray(times.argmin(axis=-1))

    def _best(self, acceptance: float, level: float, fixed: float) -> float:
        return best_chain(
            acceptance,
            lambda length: length * level + self.passes.seconds(1, length + 1) + fixed,
            LONGEST_CHAIN,
        ).time


def landscape(costs: Mapping[tuple[str, str], Costs]) -> Landscape | None:
    """From what the sweep cost; None where no chain or no target-only run tells."""
    alone = costs.get((BASELINE, ""))
    crossing = {architecture.name for architecture in ARCHITECTURES if architecture.crosses}
    chains = [
        (int(setting), known)
        for (name, setting), known in costs.items()
        if name in crossing and setting.isdigit()
    ]
    if alone is None or not chains:
        return None
    passes = ForwardTimes()
    for known in (alone, *(known for _, known in chains)):
        passes.record(1, round(known.nodes), known.made.verify)
    return Landscape(
        alone=alone.made.verify + alone.host + alone.queue,
        passes=passes,
        level=min(known.made.drafting / length for length, known in chains if length),
        host=min(known.host + known.queue for _, known in chains),
    )
