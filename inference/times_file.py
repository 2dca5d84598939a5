"""Files with durations of forward passes: device profiles, bundled or from the user, and cached
measurements of this machine.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from inference.errors import InvalidRequest
from inference.files.json_file import (
    GREATEST,
    Count,
    Line,
    Positive,
    Record,
    read_json,
    read_record,
)
from inference.files.writing import write_whole
from inference.times import Shape, Table, Times

PROFILES = Path(__file__).parent / "data" / "profiles"
"""The bundled profiles, one NAME.json each."""


@dataclass(frozen=True)
class Profile(Record):
    """Seconds of a forward pass by padded rows, and nodes of each row. A missing pair of sizes is
    interpolated by the nodes of all rows.
    """

    name: Line
    source: Line  # origin of the numbers
    assumes: Line  # assumptions behind the numbers
    times: Annotated[tuple[tuple[Count, Count, Positive], ...], Field(min_length=1)]
    slot_seconds: Annotated[float, Field(ge=0, le=GREATEST)] = 0.0  # for each row and slot it reads

    @cached_property
    def rows(self) -> Sequence[int]:
        """The numbers of rows, ascending."""
        return sorted({rows for rows, _, _ in self.times})

    @cached_property
    def nodes(self) -> Sequence[int]:
        """The numbers of nodes of a row, ascending."""
        return sorted({nodes for _, nodes, _ in self.times})

    def padded(self, rows: int, nodes: int) -> Shape:
        """Return the padded rows, and nodes of each, that a forward pass computes."""
        return _padded(rows, self.rows), _padded(nodes, self.nodes)

    def seconds(self, rows: int, nodes: int, context: int) -> float:
        """Return the seconds to compute up to `nodes` new nodes in each of `rows` rows, padding
        included. Beyond the largest sizes this takes several calls, as on a compiled target.

        context: cache slots that each row reads
        """
        rows, nodes = self.padded(rows, nodes)
        shape = min(rows, self.rows[-1]), min(nodes, self.nodes[-1])
        calls = rows * nodes // math.prod(shape)
        return calls * self._times.seconds(*shape) + rows * context * self.slot_seconds

    def table(self, context: int) -> dict[Shape, float]:
        """Return the seconds of all shapes. context: cache slots that each row reads"""
        return {shape: self.seconds(*shape, context) for shape in product(self.rows, self.nodes)}

    def slower(self, factor: float) -> Profile:
        """Return the profile of a device that takes `factor` times as long."""
        times = tuple((rows, nodes, factor * seconds) for rows, nodes, seconds in self.times)
        return replace(self, times=times, slot_seconds=factor * self.slot_seconds)

    def label(self, choices_by: str) -> str:
        """Return a description of the device, which is shown with its times."""
        return f"emulated: {self.name} (choices by {choices_by})"

    @cached_property
    def _times(self) -> Times:
        times = Times()
        times.trust({(rows, nodes): seconds for rows, nodes, seconds in self.times})
        return times


def _padded(count: int, sizes: Sequence[int]) -> int:
    """Return the smallest size, or multiple of the largest, that holds `count`."""
    return next((size for size in sizes if size >= count), -(-count // sizes[-1]) * sizes[-1])


def find_profile(name: str) -> Profile:
    """Return a bundled profile by name, or the one in a FILE.json.

    Raises InvalidRequest, listing the bundled ones, for an unknown name.
    """
    path = Path(name) if name.endswith(".json") else PROFILES / f"{name}.json"
    if not os.path.exists(path):  # or it is not accessible
        bundled = ", ".join(profile_names())
        raise InvalidRequest(f"no profile {name!r}: choose {bundled}, or a FILE.json of your own")
    return read_profile(path)


def read_profile(path: Path) -> Profile:
    """Return the profile in a file. Raises InvalidRequest for a corrupt one."""
    return read_record(read_json(path, InvalidRequest), Profile)


def profile_names() -> list[str]:
    """Return the names of the bundled profiles."""
    return sorted(path.stem for path in PROFILES.glob("*.json"))


class StoredTimes(NamedTuple):
    """The file with a model's measured times on this machine.

    kind: kind of model; the file's name begins with it
    name: description of the model
    conditions: everything that the times depend on
    """

    directory: Path
    kind: str
    name: str
    conditions: Mapping[str, str | int]

    @property
    def source(self) -> str:
        """The conditions as text."""
        return f"Measured: {', '.join(f'{key} {value}' for key, value in self.conditions.items())}."

    @property
    def path(self) -> Path:
        digest = hashlib.sha256(self.source.encode()).hexdigest()
        return self.directory / f"{self.kind}-{digest[:16]}.json"

    def load(self, tell: Callable[[str], None]) -> dict[Shape, float] | None:
        """Return the stored seconds, or None. A corrupt file counts as missing, and is reported to
        `tell`.
        """
        if not os.path.exists(self.path):  # or it is not accessible
            return None
        try:
            profile = read_profile(self.path)
            if profile.source != self.source:
                raise InvalidRequest(f"{self.path} is not of this model and machine")
        except InvalidRequest as error:
            tell(f"stored times are not used ({error}): they are measured again")
            return None
        return {(rows, nodes): seconds for rows, nodes, seconds in profile.times}

    def store(self, table: Table) -> bool:
        """Write the seconds. Return False if the directory is not writable."""
        times = tuple((*shape, seconds) for shape, seconds in table.items())
        profile = Profile(self.name, self.source, "That context costs nothing.", times)
        try:
            write_whole(self.path, json.dumps(asdict(profile)))
        except OSError:
            return False
        return True
