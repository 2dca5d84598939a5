"""Drafts by script, whose calls take simulated time."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from inference.backends import Ranked, Segment
from inference.planner.acceptance import Knowledge
from inference.planner.acceptance_file import read_acceptance
from inference.sampling import SamplingParams
from inference.times import DraftTimes, LatencyModel
from tests.simulate.kernel import Kernel
from tests.support.exact import next_token
from tests.support.scripted_models import Says, ScriptedModel, dice

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


def skilled(params: SamplingParams, kinds: int, *, right: int) -> Says:
    """A draft that names the target's token first in so many of 100 cases."""

    def says(prefix: tuple[int, ...]) -> tuple[list[int], list[float]]:
        token = next_token(np.array(prefix, dtype=np.int64), params, kinds)
        others = [(token + step) % max(kinds, 9) for step in range(1, 9)]
        chance = dice(prefix, 11) % 100
        scores = [-0.5 if chance < right else -1.0, *[-2.0 - 0.5 * rank for rank in range(7)]]
        if chance < right:
            return [token, *others[:7]], scores
        if chance < (100 + right) // 2 and right:
            return [others[0], token, *others[1:7]], scores
        return others, scores

    return says
