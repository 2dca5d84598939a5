"""Emulates a target's speed: a small model generates, and each forward pass takes the time given by
a profile.

This is for studies of latency and capacity on machines without the device. `TimedModel.overruns`
counts forward passes in which the small model was too slow. If there are many overruns, results
reflect this machine rather than the profile: use a smaller model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from inference.backends import Chosen, Model, Ranked, Segment
from inference.backends.batch import BatchShape
from inference.times_file import Profile

T = TypeVar("T")

EMULATED = "emulated "
"""Prefix of the log line that reports the accuracy of an emulation."""


class TimedModel:
    """A Model that returns the results of a real model, delayed to the time in the profile.

    real: the real model
    overruns: forward passes in which the real model took longer than the profile's time
    emulated_seconds: sum of the profile's times
    late_seconds: additional time, from overruns and from waking late on a busy machine
    """

    def __init__(self, model: Model, profile: Profile) -> None:
        self.rows, self.capacity, self.max_nodes = model.rows, model.capacity, model.max_nodes
        self.masks, self.branches = model.masks, model.branches
        self.real, self.profile = model, profile
        self.forwards = self.overruns = 0
        self.emulated_seconds = self.late_seconds = 0.0

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        return self._timed(segments, lambda: self.real.choose(segments))

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        return self._timed(segments, lambda: self.real.rank(segments, k))

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return self.profile.padded(rows, nodes)

    def copy_row(self, source: int, target: int, slots: int) -> None:
        """Copy a row without emulation, since copies take much less time than forward passes."""
        self.real.copy_row(source, target, slots)

    def account(self) -> str:
        """Return a line that reports the accuracy of the emulated times."""
        late = f"{self.late_seconds * 1e3:.1f} ms late in {self.emulated_seconds * 1e3:.1f} ms"
        return (
            f"{EMULATED}{self.profile.name}: {self.forwards} forward passes, {self.overruns} "
            f"longer than the profile says, {late}"
        )

    def _timed(self, segments: Sequence[Segment], forward: Callable[[], T]) -> T:
        start, shape = time.perf_counter(), BatchShape.of(segments)
        seconds = self.profile.seconds(shape.rows, shape.nodes, shape.slots)
        answer = forward()
        self.forwards += 1
        self.emulated_seconds += seconds
        self.overruns += time.perf_counter() - start > seconds
        while (remaining := start + seconds - time.perf_counter()) > 0:
            time.sleep(remaining)
        self.late_seconds -= remaining
        return answer
