"""Keeps how long the stages of earlier builds took, one small file for each model and device."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from compile.spec import CompileSpec
from inference.errors import BadArtifact
from inference.file_model import Number, Record, Text, read_record
from inference.json_file import read_json
from inference.whole_file import write_whole


@dataclass(frozen=True)
class _StageTimes(Record):
    """The contents of a file."""

    seconds: Mapping[Text, Number]  # stage -> seconds of its latest run


class KeptTimes:
    """The seconds of each stage of earlier builds; without a file, of none."""

    def __init__(self, path: Path | None = None) -> None:
        self._path, self.before = path, _read(path)
        self._now: dict[str, float] = dict(self.before)

    @classmethod
    def of(cls, directory: Path, spec: CompileSpec, model_fingerprint: str) -> KeptTimes:
        """The times of this model on this device, in a file below the directory."""
        subject = [spec.target, spec.dtype, spec.tensor_parallel, model_fingerprint]
        digest = hashlib.sha256(json.dumps(subject).encode()).hexdigest()
        return cls(directory / f"{digest[:16]}.json")

    def keep(self, stage: str, seconds: float) -> None:
        """Keep the time of a stage for later builds; nothing where the file cannot be written."""
        self._now[stage] = round(seconds, 3)
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(asdict(_StageTimes(self._now))) + "\n")
        except OSError:
            self._path = None


def _read(path: Path | None) -> Mapping[str, float]:
    """The times in a file. One that is missing or spoilt has none, and is replaced."""
    if path is None or not path.is_file():
        return {}
    try:
        return read_record(read_json(path, BadArtifact), _StageTimes).seconds
    except BadArtifact:
        return {}
