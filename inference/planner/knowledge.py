"""Everything that is measured and outlives a text: what one text teaches serves the next."""

from __future__ import annotations

from dataclasses import dataclass

from inference.link_times import LinkTimes
from inference.planner.acceptance import AcceptanceModel
from inference.times import DraftTimes, LatencyModel


@dataclass
class Knowledge:
    """What the proposers of one pair of models know."""

    draft: DraftTimes
    target: LatencyModel
    link: LinkTimes
    acceptance: AcceptanceModel
