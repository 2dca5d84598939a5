"""The models that an operator lists in a file. They are checked at the start and loaded when a
client first names one.

A client names a model by its name in the file. The operator alone decides where the model lies and
how it is loaded. Why a model could not be loaded is told to the operator's log, not to clients.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from grpc_comm.server.model_registry import Served
from inference.artifact import read_manifest
from inference.errors import InvalidRequest, OutriderError, Unavailable
from inference.json_file import Json, read_json, shown
from inference.model.config import read_config
from inference.text import Tokenizer
from outrider.models.artifacts import artifact_length
from outrider.models.devices import pick_device
from outrider.models.loading import Checkpoint, find_directory
from outrider.options.roles import ServingRole

LONGEST_NAME = 80

log = logging.getLogger(__name__)

Load = Callable[[ServingRole], Served]
"""Loads the model of a command line."""


class _Field(NamedTuple):
    """A field of an entry: the option it sets, how it is read, and whether an artefact decides
    it.
    """

    option: str
    read: Callable[[Json], str | int]
    decided: bool = False


def _count(raw: Json) -> int:
    return raw.integer(1)


_FIELDS: Mapping[str, _Field] = {
    "model": _Field("model", Json.line),
    "artifact": _Field("artifact", Json.line),
    "device": _Field("device", Json.line),
    "dtype": _Field("dtype", Json.line),
    "rows": _Field("batch", _count, decided=True),
    "sequence_length": _Field("sequence_length", _count),
    "max_tree_nodes": _Field("max_tree_nodes", _count),
}


def read_listed(path: Path, options: ServingRole) -> dict[str, ServingRole]:
    """The options of each listed model, by name, in the file's order.

    What an entry leaves out is as on the command line. Raises InvalidRequest, naming entry and
    field, for what cannot be served. Weights are not looked at before first use.
    """
    listed: dict[str, ServingRole] = {}
    for entry in _entries(path):
        fields = entry.fields()
        name = _name(entry.field("name"))
        fields.pop("name")
        where = f"--models {path}: {name}"
        if name in listed:
            raise InvalidRequest(f"{where} is listed twice")
        listed[name] = _options(fields, options, where)
        try:
            _check(listed[name], entry.dictionary())
        except OutriderError as error:
            raise InvalidRequest(f"{where}: {error}") from error
    if not listed:
        raise InvalidRequest(f"--models {path}: no model is listed")
    return listed


def load_listed(name: str, options: ServingRole, load: Load) -> Served:
    """Load a listed model and describe it by the name in the list."""
    served = load(options)
    return served._replace(description=replace(served.description, model=name))


def lazily(name: str, options: ServingRole, load: Load) -> Callable[[], Served]:
    """A function that loads the model for a client. A failure is logged here in full; the client
    gets one line.
    """

    def loader() -> Served:
        try:
            return load_listed(name, options, load)
        except (
            OutriderError,
            OSError,
            RuntimeError,
            ValueError,
            MemoryError,
        ) as error:  # loading may fail in weights, devices and memory
            log.error("%s could not be loaded: %s: %s", name, type(error).__name__, error)
            raise Unavailable(f"{name} could not be loaded: its target's log says why") from error

    return loader


def _entries(path: Path) -> list[Json]:
    raw = read_json(path, InvalidRequest)
    if not isinstance(raw.value, dict) or raw.value.keys() != {"models"}:
        raw.refuse('{"models": [{"name": NAME, "model": DIR_OR_NAME}, ...]}')
    return raw.field("models").items()


def _name(raw: Json) -> str:
    name = raw.value
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raw.refuse(f"a name of 1 to {LONGEST_NAME} printable characters")
    return name


def _options(entry: Mapping[str, Json], options: ServingRole, where: str) -> ServingRole:
    """The command line's options, changed by the entry's model and fields."""
    given: dict[str, Any] = dict.fromkeys(("model", "artifact", "target_model", "models"))
    for name, value in entry.items():
        field = _FIELDS.get(name)
        if field is None:
            raise InvalidRequest(
                f"{where}: unknown field {shown(name)}; there are name, {', '.join(_FIELDS)}"
            )
        given[field.option] = field.read(value)
        if field.decided and "artifact" in entry:
            raise InvalidRequest(
                f'{where}: "{name}" was decided when the artefact was built: leave it out'
            )
    if ("model" in entry) == ("artifact" in entry):
        raise InvalidRequest(f'{where}: give one of "model" and "artifact"')
    if "artifact" in entry:
        given["dtype"] = None
    try:
        return options.but(**given)
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error}") from error


def _check(options: ServingRole, entry: Mapping[str, Any]) -> None:
    """Check an entry without loading it: the model exists and can be computed, and its device
    exists.
    """
    if options.artifact:
        manifest = read_manifest(Path(options.artifact))
        artifact_length(options, manifest)
        if entry.get("dtype", manifest.dtype) != manifest.dtype:
            raise InvalidRequest(
                f'"dtype" is {entry["dtype"]}, the artefact was built in {manifest.dtype}: build '
                "another, or leave it out"
            )
        if options.device != "auto" and options.device != (
            "cpu" if manifest.target == "cpu" else "neuron"
        ):
            raise InvalidRequest(
                f'"device" is {options.device}, the artefact was built for {manifest.target}'
            )
        return
    if options.device.startswith("neuron"):
        raise InvalidRequest(
            "for neuron a model is listed as an artifact, which outrider compile builds"
        )
    pick_device(options.device)
    directory = find_directory(options.model, "target", weights=False)
    checkpoint = Checkpoint(
        options.model or "", directory, False, read_config(directory), Tokenizer(directory)
    )
    checkpoint.sequence_length(options.sequence_length)
