"""A small real target whose forwards take their time by the clock of the test."""

from __future__ import annotations

from collections.abc import Sequence

from inference.backends import Segment
from inference.backends.eager import EagerModel
from inference.tree import IntArray
from tests.support.clock import Clock

FORWARD = 0.010
"""Seconds of a forward."""


class TimedTarget(EagerModel):
    """A target that computes, and moves `clock` by FORWARD for each forward."""

    clock: Clock

    def choose(self, segments: Sequence[Segment]) -> list[IntArray]:
        self.clock.now += FORWARD
        return super().choose(segments)
