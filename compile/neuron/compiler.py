"""AWS's compiler: its platform, flags, files and failures; and a cache of compiled graphs.

A host without a device gets the platform from NEURON_PLATFORM_TARGET_OVERRIDE. The format of the
compiler's output is not documented; it is parsed as neuronx-cc 2.22 wrote it in published logs.

The cache stores compiled units under the hash of their inputs, so that none is compiled twice: on
the local disk, and in a store that machines share. The inputs are the HLO, the compiler's flags and
its version. The hash ignores changes between traces that do not affect the results: names, numbers
and source lines.

    <key>/unit.json    the unit's files with their SHA-256; written last
    <key>/...          the files
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from compile.build.build import hash_of
from compile.spec import CompileSpec
from compile.store import Objects, fetch_file
from inference.backends.neuron.model import innermost
from inference.backends.neuron.sdk import (
    Sdk,
    has_device,
    instance_family,
    load_sdk,
    logical_cores,
    sdk_versions,
)
from inference.command import say
from inference.errors import BadArtifact, InvalidRequest
from inference.files.artifact import hash_file
from inference.files.json_file import Record, Text, read_json, read_record

T = TypeVar("T")

OVERRIDE = "NEURON_PLATFORM_TARGET_OVERRIDE"
PLATFORMS = {"trn1": "trn1", "inf2": "trn1"}
"""The platform for which each target is compiled."""

_OURS = ("--target", "--lnc")


_ERRORS = (r"\[NCC_\w+\].*", r"ERROR.*", r".*[Ee]rror:.*", r".*Too many instructions.*")
"""Patterns of lines with the reason of a failed compilation, most specific first."""
_REASON = re.compile(r"NCC_\w+|Too many instructions")
_RECORD = "unit.json"
_LONGEST = 300  # maximum characters of an error


class Toolchain:
    """The compiler's flags and host requirements for a spec's artefact, and AWS's packages, which
    are set to the spec's target when first used.
    """

    def __init__(self, spec: CompileSpec) -> None:
        assert spec.target in PLATFORMS, "other targets have other builders"
        self._target, self.logical = spec.target, logical_cores(spec.target)
        self.flags = compiler_flags(spec, self.logical)
        self.host = {
            "family": spec.target,
            "logical_cores": str(self.logical),
            "interface": "model_builder",
        }

    @cached_property
    def sdk(self) -> Sdk:
        sdk_versions()
        aim(self._target)
        return load_sdk()

    @contextmanager
    def working(self) -> Iterator[Path]:
        """Yield the compiler's directory. If the compiler fails, keep it and raise BadArtifact with
        its path: CompilerDied if neither the error nor the logs give a reason.
        """
        work = Path(tempfile.mkdtemp(prefix="outrider-neuron-"))
        try:
            yield work
        except RuntimeError as error:
            reason = innermost(error).splitlines()[0]
            logs = (path.read_text("utf-8", "replace") for path in work.rglob("*.txt"))
            failed = BadArtifact if any(map(gave_reason, (reason, *logs))) else CompilerDied
            raise failed(
                f"the Neuron compiler failed: {reason}. Its files and logs are in {work}"
            ) from error
        shutil.rmtree(work)


def compiler_flags(spec: CompileSpec, logical: int) -> dict[str, str]:
    """Return neuronx-cc's flags: Outrider's, then the spec's. The spec may override all but the
    target and its cores.
    """
    flags = {
        "--target": spec.target,
        "--lnc": str(logical),
        "--model-type": "transformer",
        "--auto-cast": "none",
        "--enable-saturate-infinity": "",
    }
    reserved = [flag for flag in _OURS if flag in spec.compiler_flags]
    if reserved:
        raise InvalidRequest(
            f"compiler flag {reserved[0]} follows from --target and NEURON_LOGICAL_NC_CONFIG: "
            "leave it out"
        )
    requested = {
        f"-O{value}" if flag == "--optlevel" else flag: "" if flag == "--optlevel" else value
        for flag, value in spec.compiler_flags.items()
    }
    if not any(flag.startswith("-O") for flag in requested):
        flags["-O2"] = ""
    return flags | requested


def render(flags: Mapping[str, str]) -> str:
    """Format the flags for the compiler's command line, quoted if a value contains blanks."""
    words = {
        flag: f"{flag} {value}" if flag == "--target" else f"{flag}={shlex.quote(value)}"
        for flag, value in flags.items()
        if value
    }
    return " ".join(words.get(flag, flag) for flag in flags)


def aim(target: str) -> None:
    """Set the SDK's platform on a host without a device. Settings by the user are never changed."""
    platform, stated = PLATFORMS[target], os.environ.get(OVERRIDE)
    if stated:
        if PLATFORMS.get(stated, stated) != platform:
            raise InvalidRequest(
                f"{OVERRIDE} is {stated}, but --target is {target}: set it to {platform} or unset "
                "it"
            )
        return
    if has_device():
        family = instance_family()
        if family is not None and PLATFORMS.get(family, family) != platform:
            raise InvalidRequest(
                f"this is a {family} machine: to compile for {target} on it, set "
                f"{OVERRIDE}={platform} first"
            )
        return
    packages = ("torch_neuronx", "neuronx_distributed", "torch_xla")
    imported = [name for name in packages if name in sys.modules]
    if imported:
        raise InvalidRequest(
            f"there is no Neuron device here and {imported[0]} was imported already: set "
            f"{OVERRIDE}={platform} before starting"
        )
    os.environ[OVERRIDE] = platform
    print(
        f"no Neuron device here: compiling for {target} with {OVERRIDE}={platform}, set for this "
        "process",
        file=sys.stderr,
    )


class CompilerDied(BadArtifact):
    """The compiler ended without a reason: it was killed, or crashed."""


def gave_reason(text: str) -> bool:
    """Return whether a failed compiler's output has a reason, so that it would fail again."""
    return _REASON.search(text) is not None


def once_more(compile_graph: Callable[[], T]) -> T:
    """Compile a graph. If the compiler dies without a reason, try again once."""
    try:
        return compile_graph()
    except CompilerDied as died:
        say(f"{died}. It gave no reason: it is tried once more")
        return compile_graph()


def first_error(text: str) -> str:
    """Return the most informative line of a failed compiler's output."""
    for pattern in _ERRORS:
        if match := re.search(pattern, text):
            return match[0].strip()[:_LONGEST]
    lines = text.split("\n")
    return next((line.strip()[:_LONGEST] for line in reversed(lines) if line.strip()), "no output")


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
