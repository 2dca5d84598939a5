"""Profiles kept on disk, one file a subject: what was measured on this machine need not be
measured again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from inference.errors import InvalidRequest
from inference.file_model import Count, Positive, Record, read_record
from inference.json_file import read_json
from inference.planner.profiling import Tell
from inference.times import Shape
from inference.whole_file import write_whole

SCHEMA = 1


@dataclass(frozen=True)
class Subject(Record):
    """All that a profile's seconds depend on."""

    part: str  # draft or target
    device: str
    model: str  # fingerprint of the weights, and of the artefact where there is one
    dtype: str
    threads: int
    context: int  # slots that were read
    rows: int  # up to which it was measured
    nodes: int  # as well
    version: str  # of Outrider

    def path(self, directory: Path) -> Path:
        """Its file."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        return directory / f"{self.part}-{digest[:16]}.json"


@dataclass(frozen=True)
class _Kept(Record):
    """What a file holds."""

    schema: int
    subject: Subject
    seconds: Annotated[tuple[tuple[Count, Count, Positive], ...], Field(min_length=1)]


def load_profile(directory: Path, subject: Subject, tell: Tell) -> dict[Shape, float] | None:
    """What was kept of the subject; None, and a notice where there is a file that is not
    understood, when it is to be measured.
    """
    path = subject.path(directory)
    if not os.path.exists(path):  # a path that may not be looked at is none
        return None
    try:
        return _times(path, subject)
    except InvalidRequest as error:
        tell(f"a kept profile is not used ({error}): it is measured again")
        return None


def keep_profile(directory: Path, subject: Subject, times: Mapping[Shape, float]) -> Path | None:
    """The file that was written, whole or not at all; None where the directory cannot be written
    to: the times are known anyway.
    """
    kept = _Kept(SCHEMA, subject, tuple((*shape, seconds) for shape, seconds in times.items()))
    path = subject.path(directory)
    try:
        write_whole(path, json.dumps(asdict(kept)))
    except OSError:
        return None
    return path


def _times(path: Path, subject: Subject) -> dict[Shape, float]:
    """The seconds in a file; raises InvalidRequest unless it is a profile of the subject."""
    kept = read_record(read_json(path, InvalidRequest), _Kept)
    if (kept.schema, kept.subject) != (SCHEMA, subject):
        raise InvalidRequest(f"{path} is not this model's profile")
    return {(rows, nodes): seconds for rows, nodes, seconds in kept.seconds}
