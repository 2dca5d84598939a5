"""The models that an operator lists in a file. All are checked at start-up; each is loaded when a
client first requests it.

A client requests a model by its name in the file. Only the operator decides which files a name
refers to and how they are loaded. The reason for a failed load is logged, not sent to clients.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from grpc_comm.server.model_registry import Served
from inference.errors import InvalidRequest, OutriderError, Unavailable
from inference.files.artifact import read_manifest
from inference.files.json_file import Count, Line, Record, read_json, read_record
from outrider.models.artifacts import artifact_length
from outrider.models.devices import pick_device
from outrider.models.loading import find_named
from outrider.options.groups import backend_of
from outrider.options.roles import ServingRole

MAX_NAME = 80

log = logging.getLogger(__name__)

LoadModel = Callable[[ServingRole], Served]
"""A function that loads the model described by the options."""


@dataclass(frozen=True)
class _ListedModel(Record):
    """A listed model. Fields that are None default to the command line."""

    name: Annotated[Line, Field(max_length=MAX_NAME)]
    model: Line | None = None
    artifact: Line | None = None
    device: Line | None = None
    dtype: Line | None = None
    rows: Count | None = None
    sequence_length: Count | None = None
    max_tree_nodes: Count | None = None

    def __post_init__(self) -> None:
        if (self.model is None) == (self.artifact is None):
            raise ValueError('give one of "model" and "artifact"')
        if self.artifact is not None and self.rows is not None:
            raise ValueError('"rows" is fixed by the artefact: leave it out')

    def options(self, options: ServingRole) -> ServingRole:
        """Return the command line's options with the changes of this entry."""
        changes = {name: value for name, value in asdict(self).items() if value is not None}
        changes |= dict.fromkeys(("target_model", "models"))
        changes |= {"model": self.model, "artifact": self.artifact}
        changes |= {"dtype": None} if self.artifact is not None else {}
        del changes["name"]
        return options.replace(**changes | ({"batch": changes.pop("rows")} if self.rows else {}))


@dataclass(frozen=True)
class _List(Record):
    """The content of the file."""

    models: Annotated[list[_ListedModel], Field(min_length=1)]


def read_listed(path: Path, options: ServingRole) -> dict[str, ServingRole]:
    """Read the options of each listed model, by name, in the file's order.

    Missing fields default to the command line. Raises InvalidRequest, naming entry and field, for a
    model that cannot be served. Weights are read on first use only.
    """
    listed: dict[str, ServingRole] = {}
    for entry in read_record(read_json(path, InvalidRequest), _List).models:
        where = f"--models {path}: {entry.name}"
        if entry.name in listed:
            raise InvalidRequest(f"{where} is listed twice")
        try:
            listed[entry.name] = entry.options(options)
            _check(listed[entry.name], entry)
        except OutriderError as error:
            raise InvalidRequest(f"{where}: {error}") from error
    return listed


def load_listed(name: str, options: ServingRole, load: LoadModel) -> Served:
    """Load a listed model, and describe it to clients by its name in the list."""
    served = load(options)
    return served._replace(description=replace(served.description, model=name))


def lazily(name: str, options: ServingRole, load: LoadModel) -> Callable[[], Served]:
    """Return a function that loads the model for a client. It logs a failure in full, and raises a
    one-line error for the client.
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
        ) as error:  # weights, devices and memory may all fail
            log.error("%s could not be loaded: %s: %s", name, type(error).__name__, error)
            raise Unavailable(f"{name} could not be loaded: its target's log says why") from error

    return loader


def _check(options: ServingRole, entry: _ListedModel) -> None:
    """Check an entry without loading it: the model exists and can be computed, and its device
    exists.
    """
    if options.artifact:
        manifest = read_manifest(Path(options.artifact))
        artifact_length(options, manifest)
        if entry.dtype not in (None, manifest.dtype):
            raise InvalidRequest(
                f'"dtype" is {entry.dtype}, the artefact was built in {manifest.dtype}: build '
                "another, or leave it out"
            )
        if options.device not in ("auto", "cpu" if manifest.target == "cpu" else "neuron"):
            raise InvalidRequest(
                f'"device" is {options.device}, the artefact was built for {manifest.target}'
            )
        return
    if options.device.startswith("neuron"):
        raise InvalidRequest(
            "for neuron a model is listed as an artifact, which outrider compile builds"
        )
    pick_device(options.device)
    checkpoint = find_named(options.model, "target", backend_of(options), weights=False)
    checkpoint.sequence_length(options.sequence_length)
