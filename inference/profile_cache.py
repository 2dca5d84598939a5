"""Profiles kept on disk, one file a subject: what was measured on this machine need not be measured again."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path

from inference.profiling import Tell
from inference.times import Shape

SCHEMA = 1


@dataclass(frozen=True)
class Subject:
    """All that a profile's seconds depend on.

    part: "draft" or "target".  model: fingerprint of the weights, and of the artefact where there is one.  context: slots that were
    read.  rows, nodes: up to which it was measured.  version: of Outrider.
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
    """What was kept of the subject; None, and a notice where there is a file that is not understood, when it is to be measured."""
    path = subject.path(directory)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        tell(f"the profile {path} cannot be read ({error}): it is measured again")
        return None
    times = _times(raw, subject)
    if times is None:
        tell(f"{path} is not this model's profile: it is measured again")
    return times


def keep_profile(directory: Path, subject: Subject, times: Mapping[Shape, float]) -> Path | None:
    """The file that was written, whole or not at all; None where the directory cannot be written to: the times are known anyway."""
    content = {
        "schema": SCHEMA,
        "subject": asdict(subject),
        "seconds": [[*shape, seconds] for shape, seconds in times.items()],
    }
    path = subject.path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=directory, suffix=".json", delete=False, encoding="utf-8"
        ) as file:
            json.dump(content, file)
        os.replace(file.name, path)
    except OSError:
        return None
    return path


def _times(raw: object, subject: Subject) -> dict[Shape, float] | None:
    """The seconds in a file's contents; None unless they are a profile of the subject."""
    if (
        not isinstance(raw, dict)
        or raw.get("schema") != SCHEMA
        or raw.get("subject") != asdict(subject)
    ):
        return None
    entries = raw.get("seconds")
    if not isinstance(entries, list) or not entries or not all(map(_is_entry, entries)):
        return None
    return {(rows, nodes): float(seconds) for rows, nodes, seconds in entries}


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, list) or len(entry) != 3:
        return False
    sizes, seconds = entry[:2], entry[2]
    is_time = isinstance(seconds, float) and isfinite(seconds) and seconds > 0
    return is_time and all(
        isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes
    )
