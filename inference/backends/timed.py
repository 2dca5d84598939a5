"""Emulates a target's speed: a small real model chooses, and each forward takes a profile's time.

This is for studies of latency and capacity on machines without the device. The texts are the small
model's. `TimedModel.overruns` counts forwards in which the small model was too slow. Where there
are many, the study shows this machine and not the profile: use a smaller model.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field

from inference.backends import Chosen, Model, Ranked, Segment
from inference.backends.batch import BatchShape
from inference.errors import InvalidRequest
from inference.file_model import Count, Line, Record, read_record
from inference.json_file import GREATEST, read_json

PROFILES = Path(__file__).parents[1] / "data" / "profiles"
"""The bundled profiles, one NAME.json each."""

T = TypeVar("T")


def _ascending(sizes: tuple[int, ...]) -> tuple[int, ...]:
    if list(sizes) != sorted(set(sizes)):
        raise ValueError(f"sizes are ascending: got {list(sizes)}")
    return sizes


Time = Annotated[float, Field(ge=0, le=GREATEST)]
Sizes = Annotated[tuple[Count, ...], Field(min_length=1), AfterValidator(_ascending)]


@dataclass(frozen=True)
class TimeProfile(Record):
    """Seconds of a forward, padding included: the slower of memory traffic and arithmetic, which
    hide each other, and behind it what nothing hides.
    """

    name: Line
    source: Line  # where the figures come from
    assumes: Line  # what in them is not known
    pass_seconds: Time  # memory: the weights, once a forward
    slot_seconds: Time  # memory: keys and values, for each row and slot of context
    node_seconds: Time  # arithmetic: for each row and node
    node_slot_seconds: Time  # arithmetic: for each row, node and slot of context
    rows: Sizes  # sizes that calls are padded to, ascending
    nodes: Sizes  # of one row, ascending
    slot_step: Count  # context is read in multiples of this
    serial_seconds: Time = 0.0  # not hidden: once a forward
    serial_slot_seconds: Time = 0.0  # not hidden: for each row and slot of context
    serial_node_seconds: Time = 0.0  # not hidden: for each row and node
    serial_node_slot_seconds: Time = 0.0  # not hidden: for each row, node and slot of context

    def seconds(self, rows: int, nodes: int, context: int) -> float:
        """Return the seconds of a forward of `rows` rows with up to `nodes` new nodes each.

        context: cache slots that each row reads

        Calls beyond the largest sizes are split, as a compiled target does.
        """
        slots = -(-context // self.slot_step) * self.slot_step
        return sum(
            self._graph_seconds(row, node, slots)
            for row in _padded(rows, self.rows)
            for node in _padded(nodes, self.nodes)
        )

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        """Return the padded (rows, nodes per row) that such a forward computes."""
        return sum(_padded(rows, self.rows)), sum(_padded(nodes, self.nodes))

    def slower(self, times: float) -> TimeProfile:
        """Return the profile with every time so many times as long."""
        seconds = {name: value for name, value in vars(self).items() if name.endswith("seconds")}
        return replace(self, **{name: times * value for name, value in seconds.items()})

    def label(self, choices_by: str) -> str:
        """Return the device in words, for everything that reports a time."""
        return f"emulated: {self.name} (choices by {choices_by})"

    def _graph_seconds(self, rows: int, nodes: int, slots: int) -> float:
        memory = self.pass_seconds + rows * slots * self.slot_seconds
        arithmetic = rows * nodes * (self.node_seconds + slots * self.node_slot_seconds)
        serial = self.serial_seconds + rows * slots * self.serial_slot_seconds
        serial += rows * nodes * (self.serial_node_seconds + slots * self.serial_node_slot_seconds)
        return max(memory, arithmetic) + serial


def _padded(count: int, sizes: Sequence[int]) -> list[int]:
    """Return sizes that together hold `count`.

    The largest is used as often as it is filled, then the smallest that holds the rest.
    """
    whole, rest = divmod(count, sizes[-1])
    return [sizes[-1]] * whole + [next(size for size in sizes if size >= rest)] * (rest > 0)


def find_profile(name: str) -> TimeProfile:
    """Return a bundled profile by name, or the one in a FILE.json.

    Raises InvalidRequest, listing the bundled ones, for an unknown name.
    """
    path = Path(name) if name.endswith(".json") else PROFILES / f"{name}.json"
    if not os.path.exists(path):  # a path that may not be looked at is none
        bundled = ", ".join(profile_names())
        raise InvalidRequest(
            f"no profile {name!r}: there are {bundled}, or a FILE.json of your own"
        )
    return read_record(read_json(path, InvalidRequest), TimeProfile)


def profile_names() -> list[str]:
    """Return the names of the bundled profiles."""
    return sorted(path.stem for path in PROFILES.glob("*.json"))


EMULATED = "emulated "
"""Start of the line in which an emulation says how well it kept its times."""


class TimedModel:
    """A Model that answers like another one, but not before the profile's time has passed.

    real: the other one
    overruns: forwards in which the real model alone took longer than the profile says
    emulated_seconds: sum of the profile's times
    late_seconds: time beyond that, from overruns and from waking late on a busy machine
    """

    def __init__(self, model: Model, profile: TimeProfile) -> None:
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
        """Copy without emulating its time, which is small beside a forward on any device."""
        self.real.copy_row(source, target, slots)

    def account(self) -> str:
        """Say in one line whether the emulation kept its times."""
        late = f"{self.late_seconds * 1e3:.1f} ms late in {self.emulated_seconds * 1e3:.1f} ms"
        return (
            f"{EMULATED}{self.profile.name}: {self.forwards} forwards, {self.overruns} longer "
            f"than the profile says, {late}"
        )

    def _timed(self, segments: Sequence[Segment], forward: Callable[[], T]) -> T:
        start, shape = time.perf_counter(), BatchShape.least(segments)
        seconds = self.profile.seconds(shape.rows, shape.nodes, shape.slots)
        answer = forward()
        self.forwards += 1
        self.emulated_seconds += seconds
        self.overruns += time.perf_counter() - start > seconds
        while (left := start + seconds - time.perf_counter()) > 0:
            time.sleep(left)
        self.late_seconds -= left
        return answer
