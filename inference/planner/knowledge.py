"""Everything that is measured and outlives a text: what one text teaches serves the next."""

from __future__ import annotations

from dataclasses import dataclass

from inference.planner.acceptance import AcceptanceModel
from inference.times import DraftTimes, LinkTimes, TargetTimes


@dataclass
class Knowledge:
    """What the proposers of one pair of models know."""

    draft: DraftTimes
    target: TargetTimes
    link: LinkTimes
    acceptance: AcceptanceModel
