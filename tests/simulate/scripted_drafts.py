"""Drafts by script, whose calls take simulated time."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from inference.backends import Ranked, Segment
from inference.planner.acceptance import Knowledge
from inference.planner.acceptance_file import read_acceptance
from inference.times import DraftTimes, LatencyModel
from tests.simulate.kernel import Kernel
from tests.support.scripted_models import Says, ScriptedModel

LEARNED = read_acceptance()


def knowledge(call: float, forward: float, round_trip: float = 0.0) -> Knowledge:
    """What a proposer believes of its draft, its target and the way between."""
    times = LatencyModel({(1, 1): forward})
    return Knowledge(DraftTimes({1: call}), times, copy.deepcopy(LEARNED), round_trip)


class TimedDraft(ScriptedModel):
    """A draft, with seconds of a call of one node."""

    def __init__(self, says: Says, kernel: Kernel, seconds: float, rows: int = 1) -> None:
        super().__init__(says, rows=rows, capacity=1024)
        self._kernel, self._seconds = kernel, seconds

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        nodes = sum(len(one.tokens) for one in segments)
        self._kernel.sleep(self._seconds * (1 + 0.1 * (nodes - 1)))
        return super().rank(segments, k)
