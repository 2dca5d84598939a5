"""Times of models' forward passes on this machine, measured on first use and stored."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from inference.backends import RecordingModel
from inference.command import say
from inference.files.writing import cache_directory
from inference.planner.profiling import (
    CONTEXT,
    PROGRESS_SECONDS,
    Profiler,
    Tell,
    survey_draft,
    survey_target,
)
from inference.times import Table, Times
from inference.times_file import StoredTimes
from outrider.installation import outrider_version
from outrider.models.found_model import FoundModel, LoadedModel
from outrider.options.groups import MeasureOptions

if TYPE_CHECKING:
    from inference.engine.engine import Engine

WIDEST = 64
"""Maximum nodes of a draft's forward pass that is measured."""

QUICK_SECONDS = 0.5
"""Seconds of measuring before the first request, to get first times or to check stored ones."""

IDLE_SECONDS = 20.0
"""Seconds of measuring while no session is open."""

IDLE_CALL_SECONDS, IDLE_CALL_NODES = 1.0, 4.0
"""Maximum time of a forward pass measured while no session is open: seconds, or for a slow model
this multiple of its smallest pass. A client that connects meanwhile has to wait that long.
"""

RECORDING_SECONDS = 20.0
"""Seconds of recording a target's forward passes before the first request. The rest are recorded
while no session is open.
"""


def record_calls(model: RecordingModel, tell: Tell) -> None:
    """Record a target's planned forward passes for up to RECORDING_SECONDS, smallest first."""
    start = reported = time.perf_counter()
    recorded, remaining = 0, True
    while remaining and time.perf_counter() - start < RECORDING_SECONDS:
        remaining = model.record_next()
        recorded += remaining
        if time.perf_counter() - reported > PROGRESS_SECONDS:
            reported = time.perf_counter()
            tell(f"recorded {recorded} CUDA graphs")
    later = "; the others while no session is open" if remaining else ""
    tell(f"recorded {recorded} CUDA graphs in {time.perf_counter() - start:.1f} s{later}")


def _measure_idle(
    survey: Profiler, store: Callable[[Profiler], None], nodes: int, engine: Engine
) -> bool:
    """Measure one forward pass while no session is open; after the last, store the times. Returns
    False if nothing could be measured.

    nodes: nodes of the widest pass to measure
    """
    cached, call = engine.row_slots, survey.times.seconds(*survey.smallest)
    survey.most, survey.longest = IDLE_SECONDS, max(IDLE_CALL_SECONDS, IDLE_CALL_NODES * call)
    if survey.done or max(row.high_water for row in cached) + nodes > engine.model.capacity:
        return False
    survey.advance(cached)
    if survey.done and survey.is_representative:  # else a later, less busy start measures more
        store(survey)
    return True


class TargetTimes(NamedTuple):
    """Measured times of a target's forward passes."""

    times: Times
    table: Table  # sent to clients
    when_idle: Callable[[Engine], bool] | None = None  # measures more shapes


@dataclass(frozen=True)
class Profiles:
    """Stored times of models, and their measurement."""

    directory: Path
    tell: Tell  # prints lines of progress
    upfront: bool = False  # measure all shapes before serving

    def draft(self, draft: FoundModel, model: LoadedModel, length: int) -> Table:
        """Return the seconds of a draft's forward pass, by shape.

        length: maximum sequence length of the loaded model
        """
        width, identity = min(WIDEST, model.max_nodes), draft.fingerprint()
        place = self._stored("draft", draft, model, identity, length, rows=1, nodes=width)
        if (stored := place.load(self.tell)) is not None:
            return stored
        survey = survey_draft(model, length, width)
        self._measure(place, survey)
        if not survey.done:
            self.tell(f"some times of {place.name} are estimated; --measure_first measures all")
        return survey.table()

    def target(
        self, target: FoundModel, identity: str, model: LoadedModel, length: int, nodes: int
    ) -> TargetTimes:
        """Return the seconds of a target's forward pass, by rows and by nodes in each row.

        identity: fingerprint of the target's weights and artefact
        """
        rows = model.rows
        idle: list[Callable[[Engine], bool]] = []
        if isinstance(model, RecordingModel):
            model.plan(rows, nodes)
            record_calls(model, self.tell)
            idle.append(lambda engine: model.record_next())
        place = self._stored("target", target, model, identity, length, rows=rows, nodes=nodes)
        stored = place.load(self.tell)
        survey = survey_target(model, length, rows, nodes, Times(stored))
        if stored is not None:
            survey.run(lambda progress: None, QUICK_SECONDS, wide=2 * QUICK_SECONDS)
        else:
            self._measure(place, survey)
            if not survey.done:
                idle.append(partial(_measure_idle, survey, partial(self._store, place), nodes))
        when_idle = (lambda engine: any(step(engine) for step in idle)) if idle else None
        return TargetTimes(survey.times, survey.table(), when_idle)

    def _stored(
        self,
        kind: str,
        source: FoundModel,
        model: LoadedModel,
        identity: str,
        length: int,
        *,
        rows: int,
        nodes: int,
    ) -> StoredTimes:
        device, threads = source.conditions(model)
        conditions: dict[str, str | int] = {
            "device": device,
            "model": identity,
            "dtype": str(model.dtype).removeprefix("torch."),
            "threads": threads,
            "context": min(CONTEXT, length),
            "rows": rows,
            "nodes": nodes,
            "version": outrider_version(),
        }
        return StoredTimes(self.directory, kind, f"the {kind} {source.name}", conditions)

    def _measure(self, place: StoredTimes, survey: Profiler) -> None:
        """Measure before the first request: all shapes if `upfront`, else for QUICK_SECONDS."""
        if not self.upfront:
            survey.run(lambda progress: None, QUICK_SECONDS)
        else:
            self.tell(f"measuring {place.name} on {place.conditions['device']}")
            survey.run(self.tell)
        if survey.done:
            self._store(place, survey)

    def _store(self, place: StoredTimes, survey: Profiler) -> None:
        is_stored = place.store(survey.table())
        where = place.path if is_stored else f"not stored: {self.directory} is not writable"
        self.tell(f"measured {place.name} in {survey.spent:.1f} s: {where}")


def user_profiles(options: MeasureOptions) -> Profiles:
    """Return the profiles in this user's cache. Measuring prints its progress on stderr."""
    return Profiles(cache_directory("profiles"), say, options.measure_first)
