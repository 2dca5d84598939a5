"""Runs the stages of a build. A stage whose inputs and files are unchanged is not run again.

`.build/` in the artefact's directory remembers what each stage was made from, and the hashes of its
files.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from compile.build.progress import WEIGHTS, BuildProgress
from inference.artifact import MANIFEST, hash_files
from inference.errors import BadArtifact
from inference.file_model import Record, Text, read_record
from inference.files import write_whole
from inference.json_file import read_json

STATE = ".build"


@dataclass(frozen=True)
class Stage(Record):
    """The record of a finished stage. It lies beside the artefact."""

    key: Text  # hash of what it was made from
    files: Mapping[Text, Text]  # path -> SHA-256


@dataclass(frozen=True)
class Stages:
    """The stages of one build. Several may run at the same time, from several threads."""

    directory: Path
    base: str  # hash of what every stage is made from
    progress: BuildProgress

    def run(
        self, name: str, made_from: Mapping[str, Any], make: Callable[[], Iterable[str]]
    ) -> dict[str, str]:
        """Run the stage if needed. Returns its files: path -> SHA-256."""
        key = hash_of({"base": self.base, **made_from})
        path = self.directory / STATE / f"{name}.json"
        files = _finished(self.directory, path, key)
        if files is not None:
            self.progress.present(name)
            return files
        self.progress.started(name)
        if path.is_file() or name == WEIGHTS:  # a manifest does not cover a graph that is new
            (self.directory / MANIFEST).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        start = time.perf_counter()
        files = _hash_made(self.directory, name, make())
        seconds = time.perf_counter() - start
        write_whole(path, json.dumps(asdict(Stage(key, files))) + "\n")
        size = sum((self.directory / file).stat().st_size for file in files)
        self.progress.finished(name, seconds, size)
        return files


def hash_of(value: Mapping[str, Any]) -> str:
    """SHA-256 of a value's JSON, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _finished(directory: Path, path: Path, key: str) -> dict[str, str] | None:
    """Files of a stage that was made from the same inputs and is unchanged. None: it has to be
    run.
    """
    try:
        stage = read_record(read_json(path, BadArtifact), Stage)
        made = stage.key == key and hash_files(directory, stage.files) == stage.files
    except (BadArtifact, OSError):
        return None
    return dict(stage.files) if made else None


def _hash_made(directory: Path, stage: str, names: Iterable[str]) -> dict[str, str]:
    names = list(names)
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise BadArtifact(f"{stage}: the builder named {missing[0]}, which it did not write")
    return hash_files(directory, names)
