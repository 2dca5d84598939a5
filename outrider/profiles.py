"""Profiles of a draft and a target: what their calls take on this machine. They are measured on
first use and kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from inference.cache_directory import cache_directory
from inference.command import say
from inference.planner.profiling import (
    CONTEXT,
    Subject,
    Tell,
    keep_profile,
    load_profile,
    profile_draft,
    profile_target,
)
from inference.times import Shape
from outrider.models import Checkpoint, describe
from outrider.version import outrider_version

if TYPE_CHECKING:
    from inference.backends.compiled import CompiledModel
    from inference.backends.eager import EagerModel
    from inference.backends.legacy_neuron import LegacyNeuronModel

    Measurable = EagerModel | CompiledModel | LegacyNeuronModel

WIDEST = 64
"""Nodes of the widest call of a draft that is profiled."""


@dataclass(frozen=True)
class Profiles:
    """The kept profiles, and how they are made."""

    directory: Path
    tell: Tell  # hears of progress, a line at a time
    afresh: bool = False  # measure, whatever is kept

    def draft(self, checkpoint: Checkpoint, model: Measurable, length: int) -> dict[int, float]:
        """Seconds of a draft call by width, for DraftTimes.

        length: the longest sequence that the model was loaded for
        """
        from inference.model.checkpoint import fingerprint

        width = min(WIDEST, model.max_nodes)
        subject = _subject(
            "draft", model, length, fingerprint(checkpoint.directory), rows=1, nodes=width
        )
        times = self._times(
            subject,
            f"the draft {checkpoint.name}",
            lambda: _in_one_row(profile_draft(model, length, width, self.tell)),
        )
        return {nodes: seconds for (_, nodes), seconds in times.items()}

    def target(
        self, name: str, made_from: str, model: Measurable, length: int, nodes: int
    ) -> dict[Shape, float]:
        """Seconds of a forward by rows and by nodes of each row, for TargetTimes.

        made_from: fingerprint of its weights, and of its artefact
        """
        subject = _subject("target", model, length, made_from, rows=model.rows, nodes=nodes)
        return self._times(
            subject,
            f"the target {name}",
            lambda: profile_target(model, length, model.rows, nodes, self.tell),
        )

    def _times(
        self, subject: Subject, what: str, measure: Callable[[], dict[Shape, float]]
    ) -> dict[Shape, float]:
        kept = None if self.afresh else load_profile(self.directory, subject, self.tell)
        if kept is not None:
            return kept
        self.tell(f"measuring {what} on {subject.device}")
        start = time.perf_counter()
        times = measure()
        path = keep_profile(self.directory, subject, times)
        took = time.perf_counter() - start
        self.tell(
            f"measured in {took:.1f} s, "
            + (f"kept in {path}" if path else f"not kept: {self.directory} cannot be written to")
        )
        return times


def user_profiles(*, afresh: bool = False) -> Profiles:
    """The profiles in this user's cache. Progress is printed on stderr."""
    return Profiles(cache_directory("profiles"), say, afresh)


def _subject(
    part: str, model: Measurable, length: int, made_from: str, *, rows: int, nodes: int
) -> Subject:
    return Subject(
        part=part,
        device=_device(model.device),
        model=made_from,
        dtype=str(model.dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        context=min(CONTEXT, length),
        rows=rows,
        nodes=nodes,
        version=outrider_version(),
    )


def _device(device: torch.device) -> str:
    """The device in words, with the processor's name."""
    return f"{describe(device)}, {_processor()}" if device.type == "cpu" else describe(device)


@cache
def _processor() -> str:
    """The processor's name where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown processor"
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        "unknown processor",
    )


def _in_one_row(seconds: dict[int, float]) -> dict[Shape, float]:
    return {(1, width): each for width, each in seconds.items()}
