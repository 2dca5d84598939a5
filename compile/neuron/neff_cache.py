"""Stores compiled Neuron graphs under the hash of their inputs, so that none is compiled twice: on
this disk, and in a store that machines share.

What a graph was made of is its HLO, the compiler's flags and the compiler's version. The hash
leaves out what changes from one trace to the next and computes nothing: names, numbers and source
lines.

    <key>/unit.json    the unit's files with their SHA-256; written last
    <key>/...          the files
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from compile.build.build import hash_of
from compile.store import Objects, fetch_file
from inference.errors import BadArtifact
from inference.files.artifact import hash_file
from inference.files.json_file import read_json
from inference.files.records import Record, Text, read_record

_RECORD = "unit.json"


@dataclass(frozen=True)
class Unit(Record):
    """The record of a compiled unit."""

    files: Mapping[Text, Text]  # name -> SHA-256


def unit_key(kind: str, hlo: Any, flags: str, compiler: str) -> str:
    """The name of what is made of a graph.

    kind: what is made; hlo: an HloModuleProto; flags: the compiler's; compiler: its version
    """
    return hash_of({"kind": kind, "hlo": hlo_digest(hlo), "flags": flags, "compiler": compiler})


def hlo_digest(hlo: Any) -> str:
    """SHA-256 of what an HloModuleProto computes.

    Numbers of computations and instructions are replaced by their places, because a tracer does not
    restart its counts for each graph.
    """
    plain = type(hlo)()
    plain.CopyFrom(hlo)
    for field in ("name", "entry_computation_name", "id"):
        plain.ClearField(field)
    places = {computation.id: place for place, computation in enumerate(plain.computations, 1)}
    plain.entry_computation_id = places[plain.entry_computation_id]
    for computation in plain.computations:
        _renumber(computation, places)
    return hashlib.sha256(plain.SerializeToString(deterministic=True)).hexdigest()


def _renumber(computation: Any, places: Mapping[int, int]) -> None:
    computation.ClearField("name")
    computation.id = places[computation.id]
    inside = {
        instruction.id: place for place, instruction in enumerate(computation.instructions, 1)
    }
    computation.root_id = inside[computation.root_id]
    for instruction in computation.instructions:
        instruction.ClearField("name")
        instruction.ClearField("metadata")
        instruction.id = inside[instruction.id]
        for numbers, meant in (
            (instruction.operand_ids, inside),
            (instruction.control_predecessor_ids, inside),
            (instruction.called_computation_ids, places),
        ):
            numbers[:] = [meant[number] for number in numbers]


class NeffCache:
    """Compiled units by their keys.

    store: shared with other machines. Units are executable code and are used without a further
    check, so anyone who can write to the store decides what this machine runs.
    """

    def __init__(self, directory: Path, store: Objects | None = None) -> None:
        self._directory, self._store = directory, store

    def find(self, key: str) -> Path | None:
        """The directory of a unit's files, each as it was made; None if there is none."""
        unit = self._directory / key
        if _whole(unit):
            return unit
        if self._store is None or not self._store.has(f"units/{key}.json"):
            return None
        with _replacing(unit) as part:
            self._store.get(f"units/{key}.json", part / _RECORD)
            for name, sha256 in _read(part).items():
                fetch_file(self._store, sha256, part / name)
        return unit

    def keep(self, key: str, files: Mapping[str, Path]) -> Path:
        """Store a unit's files, by their names in it. Returns their directory."""
        unit = self._directory / key
        with _replacing(unit) as part:
            for name, path in files.items():
                shutil.copyfile(path, part / name)
            record = Unit({name: hash_file(part / name) for name in sorted(files)})
            (part / _RECORD).write_text(json.dumps(asdict(record)) + "\n", encoding="utf-8")
        if self._store is not None:
            for name, sha256 in record.files.items():
                self._store.put(f"files/{sha256}", unit / name)
            self._store.put(f"units/{key}.json", unit / _RECORD)
        return unit


@contextmanager
def _replacing(unit: Path) -> Iterator[Path]:
    """A new directory beside the unit's, which takes its place when the context ends well."""
    unit.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=unit.parent, prefix=".") as name:
        part = Path(name) / "unit"
        part.mkdir()
        yield part
        if not _whole(unit):
            shutil.rmtree(unit, ignore_errors=True)
            part.replace(unit)


def _whole(unit: Path) -> bool:
    """Whether the unit is there with every file as it was made."""
    try:
        return all(hash_file(unit / name) == sha256 for name, sha256 in _read(unit).items())
    except (BadArtifact, OSError):
        return False


def _read(unit: Path) -> Mapping[str, str]:
    """The unit's files. Raises BadArtifact, also for a name that leads out of its directory."""
    files = read_record(read_json(unit / _RECORD, BadArtifact), Unit).files
    for name in files:
        if Path(name).name != name:
            raise BadArtifact(f"{unit / _RECORD} names {name}, which is not a file of a unit")
    return files
