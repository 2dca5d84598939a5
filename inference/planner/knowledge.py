"""Everything that is measured, by whom it was measured. It outlives texts: what was learned in one
serves the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.planner.acceptance import AcceptanceModel
from inference.times import DraftTimes, LinkTimes, TargetTimes


@dataclass
class Knowledge:
    """What proposers of one pair of models know."""

    draft: DraftTimes
    target: TargetTimes
    link: LinkTimes
    acceptance: AcceptanceModel
