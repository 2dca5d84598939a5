"""The random target of tests/support/pairs.py with a draft beside it, on a clock of the test."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from inference.backends import Chosen, Segment
from inference.backends.eager import EagerModel
from inference.drafters.draft import Draft
from inference.engine.colocated_drafter import ColocatedDrafter
from inference.engine.engine import Engine
from inference.model.decoder import Decoder
from inference.times import LatencyModel
from tests.support import pairs
from tests.support.clock import Clock
from tests.support.drafts import knowledge

FORWARD, CALL = 0.010, 0.001
"""Seconds of a forward of the target and of a call of its draft."""


class TimedTarget(EagerModel):
    """A target that computes, and whose forwards take FORWARD."""

    def __init__(self, decoder: Decoder, clock: Clock, rows: int = 2) -> None:
        super().__init__(decoder, rows=rows, capacity=pairs.SEQUENCE_LENGTH + 64, max_nodes=64)
        self._clock = clock

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        self._clock.now += FORWARD
        return super().choose(segments)


def engine_beside(
    target: TimedTarget, draft: Draft, room: int, clock: Clock, *, copies: bool = False
) -> Engine:
    times = {(row, node): FORWARD for row in (1, 2, 4) for node in (1, 2, 4, 8, 16, 32, 64)}
    known = partial(knowledge, CALL, 64)
    return Engine(
        target,
        sequence_length=pairs.SEQUENCE_LENGTH,
        max_tree_nodes=64,
        vocabulary=pairs.VOCABULARY,
        times=LatencyModel(times, measured=True),
        drafter=ColocatedDrafter(draft, known, room=room, clock=clock, copies=copies),
        clock=clock,
    )
