"""Profiles of a draft and a target: what their calls take on this machine. They are measured on
first use and kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from inference.command import say
from inference.files import cache_directory
from inference.planner.profile_files import Subject, keep_profile, load_profile
from inference.planner.profiling import CONTEXT, Profiler, Tell, survey_draft, survey_target
from inference.times import Shape, Times
from outrider.models.found_model import FoundModel, LoadedModel
from outrider.options.groups import MeasureOptions
from outrider.version import outrider_version

if TYPE_CHECKING:
    from inference.engine.engine import Engine

WIDEST = 64
"""Nodes of the widest call of a draft that is profiled."""


QUICK_SECONDS = 0.5
"""Seconds of measuring before the first text, where nothing was kept and to check what was."""

IDLE_SECONDS = 20.0
"""Seconds of measuring while nobody has a session."""

IDLE_CALL_SECONDS, IDLE_CALL_NODES = 1.0, 4.0
"""Seconds that a call may take at most which is made while nobody has a session, or that many calls
of one node where these are slow: a client that comes then waits for its end.
"""


class _Place(NamedTuple):
    """A place to keep the profile of one subject, a draft or a target."""

    directory: Path
    subject: Subject
    what: str  # the model, in words
    tell: Tell

    def keep(self, survey: Profiler) -> None:
        path = keep_profile(self.directory, self.subject, survey.times())
        kept = f"kept in {path}" if path else f"not kept: {self.directory} cannot be written to"
        self.tell(f"measured {self.what} in {survey.spent:.1f} s, {kept}")


@dataclass
class PendingProfile:
    """Measurements of a target that are still to be made, while it serves."""

    survey: Profiler
    place: _Place
    nodes: int  # of the widest call
    over: bool = False  # all is measured, and the engine has the result

    def advance(self, engine: Engine) -> bool:
        """Measure one call while nobody has a session; False where none can be measured.

        The engine takes the result once all is measured.
        """
        survey, kept = self.survey, engine.row_slots
        full = max(one.high_water for one in kept) + self.nodes > engine.model.capacity
        if self.over or full:
            return False
        survey.most = IDLE_SECONDS
        one = survey.measured[survey.smallest]
        survey.longest = max(IDLE_CALL_SECONDS, IDLE_CALL_NODES * one)
        survey.advance(kept)
        self.over = survey.done
        if self.over:
            engine.take_times(Times(survey.times(), measured=True))
            if survey.telling:  # else another start, on a quieter machine, tells more
                self.place.keep(survey)
        return True


@dataclass(frozen=True)
class Profiles:
    """The kept profiles, and how they are made."""

    directory: Path
    tell: Tell  # hears of progress, a line at a time
    whole: bool = False  # measure all before anything else is done

    def draft(self, draft: FoundModel, model: LoadedModel, length: int) -> dict[Shape, float]:
        """Seconds of a draft's call by shape.

        length: the longest sequence that the model was loaded for
        """
        width, made_from = min(WIDEST, model.max_nodes), draft.fingerprint()
        place = self._place("draft", draft, model, made_from, length, rows=1, nodes=width)
        survey = survey_draft(model, length, width)
        times = self._kept(place)
        if times is None:
            times = self._measured(place, survey)
            if not survey.done:
                self.tell(f"some times of {place.what} are estimated; --measure_first measures all")
        return times

    def target(
        self, target: FoundModel, made_from: str, model: LoadedModel, length: int, nodes: int
    ) -> tuple[Times, PendingProfile | None]:
        """Seconds of a forward by rows and by nodes of each row, and what is left to measure.

        made_from: fingerprint of its weights, and of its artefact
        """
        rows = model.rows
        place = self._place("target", target, model, made_from, length, rows=rows, nodes=nodes)
        survey = survey_target(model, length, rows, nodes)
        kept = self._kept(place)
        if kept is None:
            measured = Times(self._measured(place, survey), measured=True)
            return measured, None if survey.done else PendingProfile(survey, place, nodes)
        survey.run(lambda progress: None, QUICK_SECONDS, wide=2 * QUICK_SECONDS)
        times = Times(kept)
        times.trust(survey.measured)
        return times, None

    def _place(
        self,
        part: str,
        found: FoundModel,
        model: LoadedModel,
        made_from: str,
        length: int,
        *,
        rows: int,
        nodes: int,
    ) -> _Place:
        device, threads = found.conditions(model)
        subject = Subject(
            part=part,
            device=device,
            model=made_from,
            dtype=str(model.dtype).removeprefix("torch."),
            threads=threads,
            context=min(CONTEXT, length),
            rows=rows,
            nodes=nodes,
            version=outrider_version(),
        )
        return _Place(self.directory, subject, f"the {part} {found.name}", self.tell)

    def _kept(self, place: _Place) -> dict[Shape, float] | None:
        """The times of an earlier start."""
        return load_profile(self.directory, place.subject, self.tell)

    def _measured(self, place: _Place, survey: Profiler) -> dict[Shape, float]:
        """Seconds by shape, measured before all else: all if `whole`, else for QUICK_SECONDS."""
        if not self.whole:
            times = survey.run(lambda progress: None, QUICK_SECONDS)
        else:
            self.tell(f"measuring {place.what} on {place.subject.device}")
            times = survey.run(self.tell)
        if survey.done:
            place.keep(survey)
        return times


def user_profiles(options: MeasureOptions) -> Profiles:
    """The profiles in this user's cache. Progress is printed on stderr."""
    return Profiles(cache_directory("profiles"), say, options.measure_first)
