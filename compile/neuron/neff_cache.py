"""Stores compiled Neuron graphs under the hash of their inputs, so that none is compiled twice: on
the local disk, and in a store that machines share.

The inputs are the HLO, the compiler's flags and the compiler's version. The hash ignores changes
between traces that do not affect the results: names, numbers and source lines.

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
from inference.files.json_file import Record, Text, read_json, read_record

_RECORD = "unit.json"


@dataclass(frozen=True)
class Unit(Record):
    """The record of a compiled unit."""

    files: Mapping[Text, Text]  # name -> SHA-256


def unit_key(kind: str, hlo: Any, flags: str, compiler: str) -> str:
    """Return the key of a unit that is compiled from a graph.

    kind: of the unit; hlo: an HloModuleProto; flags: of the compiler; compiler: its version
    """
    return hash_of({"kind": kind, "hlo": hlo_digest(hlo), "flags": flags, "compiler": compiler})


def hlo_digest(hlo: Any) -> str:
    """Return the SHA-256 of what an HloModuleProto computes.

    Ids of computations and instructions are replaced by their order, because a tracer does not
    restart its counters for each graph.
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
        for numbers, places_of in (
            (instruction.operand_ids, inside),
            (instruction.control_predecessor_ids, inside),
            (instruction.called_computation_ids, places),
        ):
            numbers[:] = [places_of[number] for number in numbers]


class NeffCache:
    """Compiled units by key.

    store: shared with other machines. Units are executable code and are used without a further
    check, so anyone who can write to the store decides what this machine runs.
    """

    def __init__(self, directory: Path, store: Objects | None = None) -> None:
        self._directory, self._store = directory, store

    def find(self, key: str) -> Path | None:
        """Return the directory of a unit with all of its files unchanged; None if there is none."""
        unit = self._directory / key
        if _whole(unit):
            return unit
        if self._store is None or not self._store.has(f"units/{key}.json"):
            return None
        with _replacing(unit) as partial:
            self._store.get(f"units/{key}.json", partial / _RECORD)
            for name, sha256 in _read(partial).items():
                fetch_file(self._store, sha256, partial / name)
        return unit

    def keep(self, key: str, files: Mapping[str, Path]) -> Path:
        """Store a unit's files under these names, and return their directory."""
        unit = self._directory / key
        with _replacing(unit) as partial:
            for name, path in files.items():
                shutil.copyfile(path, partial / name)
            record = Unit({name: hash_file(partial / name) for name in sorted(files)})
            (partial / _RECORD).write_text(json.dumps(asdict(record)) + "\n", encoding="utf-8")
        if self._store is not None:
            for name, sha256 in record.files.items():
                self._store.put(f"files/{sha256}", unit / name)
            self._store.put(f"units/{key}.json", unit / _RECORD)
        return unit


@contextmanager
def _replacing(unit: Path) -> Iterator[Path]:
    """Yield a new directory, which replaces the unit's if the context ends without an error."""
    unit.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=unit.parent, prefix=".") as name:
        partial = Path(name) / "unit"
        partial.mkdir()
        yield partial
        if not _whole(unit):
            shutil.rmtree(unit, ignore_errors=True)
            partial.replace(unit)


def _whole(unit: Path) -> bool:
    try:
        return all(hash_file(unit / name) == sha256 for name, sha256 in _read(unit).items())
    except (BadArtifact, OSError):
        return False


def _read(unit: Path) -> Mapping[str, str]:
    """Return the unit's files. Raises BadArtifact, also for a name outside its directory."""
    files = read_record(read_json(unit / _RECORD, BadArtifact), Unit).files
    for name in files:
        if Path(name).name != name:
            raise BadArtifact(f"{unit / _RECORD} names {name}, which is not a file of a unit")
    return files
