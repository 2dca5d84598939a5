"""Measured times on disk, one file for each subject: nothing is measured twice on a machine."""

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
from inference.files import write_whole
from inference.json_file import read_json
from inference.planner.profiling import Tell
from inference.times import Shape

SCHEMA = 1


@dataclass(frozen=True)
class Subject(Record):
    """All that a profile's seconds depend on."""

    part: str  # draft or target
    device: str
    model: str  # fingerprint of the weights, and of the artefact where there is one
    dtype: str
    threads: int
    context: int  # cache slots that each call reads
    rows: int  # largest that was measured
    nodes: int  # largest that was measured
    version: str  # Outrider's

    def path(self, directory: Path) -> Path:
        """Return the subject's file in `directory`."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        return directory / f"{self.part}-{digest[:16]}.json"


@dataclass(frozen=True)
class _Kept(Record):
    """The contents of a file."""

    schema: int
    subject: Subject
    seconds: Annotated[tuple[tuple[Count, Count, Positive], ...], Field(min_length=1)]


def load_profile(directory: Path, subject: Subject, tell: Tell) -> dict[Shape, float] | None:
    """Return the seconds kept for the subject, by shape; None where there are none.

    A file that cannot be understood is reported to `tell`, and counts as none.
    """
    path = subject.path(directory)
    if not os.path.exists(path):  # a path that may not be looked at is none
        return None
    try:
        return read_profile(path)[1]
    except InvalidRequest as error:
        tell(f"a kept profile is not used ({error}): it is measured again")
        return None


def read_profile(path: Path) -> tuple[Subject, dict[Shape, float]]:
    """Return a kept file's subject and seconds; raise InvalidRequest where it is spoilt."""
    kept = read_record(read_json(path, InvalidRequest), _Kept)
    if kept.schema != SCHEMA or path.name != kept.subject.path(path.parent).name:
        raise InvalidRequest(f"{path} is not this model's profile")
    return kept.subject, {(rows, nodes): seconds for rows, nodes, seconds in kept.seconds}


def keep_profile(directory: Path, subject: Subject, times: Mapping[Shape, float]) -> Path | None:
    """Write the seconds, by shape, to the subject's file; return its path.

    Returns None where the directory cannot be written to: the caller has the times anyway.
    """
    kept = _Kept(SCHEMA, subject, tuple((*shape, seconds) for shape, seconds in times.items()))
    path = subject.path(directory)
    try:
        write_whole(path, json.dumps(asdict(kept)))
    except OSError:
        return None
    return path
