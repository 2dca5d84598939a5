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

from inference.errors import InvalidRequest
from inference.json_file import Json, read_json
from inference.planner.profiling import Tell
from inference.times import Shape
from inference.whole_file import write_whole

SCHEMA = 1


@dataclass(frozen=True)
class Subject:
    """All that a profile's seconds depend on.

    part: "draft" or "target".  model: fingerprint of the weights, and of the artefact where there
    is one.  context: slots that were read.  rows, nodes: up to which it was measured.  version: of
    Outrider.
    """

    part: str
    device: str
    model: str
    dtype: str
    threads: int
    context: int
    rows: int
    nodes: int
    version: str

    def path(self, directory: Path) -> Path:
        """Its file."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        return directory / f"{self.part}-{digest[:16]}.json"


def load_profile(directory: Path, subject: Subject, tell: Tell) -> dict[Shape, float] | None:
    """What was kept of the subject; None, and a notice where there is a file that is not
    understood, when it is to be measured.
    """
    path = subject.path(directory)
    if not os.path.exists(path):  # a path that may not be looked at is none
        return None
    try:
        return _times(read_json(path, InvalidRequest), subject)
    except InvalidRequest as error:
        tell(f"a kept profile is not used ({error}): it is measured again")
        return None


def keep_profile(directory: Path, subject: Subject, times: Mapping[Shape, float]) -> Path | None:
    """The file that was written, whole or not at all; None where the directory cannot be written
    to: the times are known anyway.
    """
    content = {
        "schema": SCHEMA,
        "subject": asdict(subject),
        "seconds": [[*shape, seconds] for shape, seconds in times.items()],
    }
    path = subject.path(directory)
    try:
        write_whole(path, json.dumps(content))
    except OSError:
        return None
    return path


def _times(raw: Json, subject: Subject) -> dict[Shape, float]:
    """The seconds in a file; raises InvalidRequest unless it is a profile of the subject."""
    if raw.field("schema").value != SCHEMA or raw.field("subject").value != asdict(subject):
        raise InvalidRequest(f"{raw.where} is not this model's profile")
    entries = raw.field("seconds")
    if not entries.items():
        entries.refuse("one time at least")
    return dict(entries.each(_entry))


def _entry(raw: Json) -> tuple[Shape, float]:
    parts = raw.items()
    if len(parts) != 3:
        raw.refuse("a list of rows, nodes and seconds")
    seconds = parts[2].number()
    if not seconds > 0:
        parts[2].refuse("a time above 0")
    return (parts[0].integer(1), parts[1].integer(1)), seconds
