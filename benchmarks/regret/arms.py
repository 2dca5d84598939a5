"""The arms of the study: the target alone, a draft here, and a draft here that copies, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.regret.stage import Stage
from inference.drafters.copied_text import CopySource
from inference.drafters.draft import Draft
from inference.planner.prices import Prices
from inference.proposer import Proposer


class Arm(NamedTuple):
    """A way to make texts. propose: its proposers, which learn from text to text."""

    name: str
    propose: Callable[[Stage], list[Proposer]]


def _drafting(stage: Stage, source: CopySource | None = None) -> list[Proposer]:
    prices = Prices(battery=True)
    return [
        Draft(stage.draft).proposer(
            stage.row, stage.knowledge(), prices, clock=stage.now, source=source
        )
    ]


ALONE = Arm("target-only", lambda stage: [])
GROWING = Arm("growing", _drafting)
HYBRID = Arm("hybrid", lambda stage: _drafting(stage, CopySource()))
"""The draft here that copies, too, which is the default of --role draft."""

ARMS = (ALONE, GROWING, HYBRID)
