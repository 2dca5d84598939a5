"""Everything that is measured and outlives a text: what one text teaches serves the next."""

from __future__ import annotations

from dataclasses import dataclass

from inference.planner.acceptance import AcceptanceModel
from inference.times import DraftTimes, LatencyModel


@dataclass
class Knowledge:
    """Times and acceptance of one pair of models.

    round_trip: seconds of an exchange with the target without work; 0 for a target beside the draft
    """

    draft: DraftTimes
    target: LatencyModel
    acceptance: AcceptanceModel
    round_trip: float = 0.0
