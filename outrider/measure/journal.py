"""The journal of a run: its environment, outputs and end, as JSON lines."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeAlias

from inference.command import say
from inference.errors import InvalidRequest
from inference.files.writing import locked
from outrider.client.client import Client
from outrider.client.connecting import measure_round_trip
from outrider.measure.sets import Item
from outrider.models.machine import instructions, processor

NAME = "run.jsonl"
"""File name of the journal in a run's directory."""

Values: TypeAlias = dict[str, Any]


class TextKey(NamedTuple):
    """Identifies an output by prompt, turn, repetition, link and arm."""

    set: str
    kind: str
    name: str
    turn: int
    repeat: int
    rtt_ms: float
    arm: str

    @property
    def prompt(self) -> str:
        return f"{self.set}/{self.kind}/{self.name}"


def plan_of(settings: Mapping[str, Any], items: Sequence[Item]) -> Values:
    """Return settings and a digest of each prompt. To resume a run, both must be equal."""
    digests = {item.place: sha256(json.dumps(item).encode()).hexdigest()[:16] for item in items}
    plan: Values = json.loads(json.dumps({"settings": settings, "prompts": digests}))
    return plan


@dataclass
class Journal:
    """The records of a run, in memory and, if there is a file, in that file.

    ends: empty until all outputs are generated
    """

    plan: Values
    file: TextIO | None = None
    starts: list[Values] = field(default_factory=list, init=False)
    texts: dict[TextKey, Values] = field(default_factory=dict, init=False)
    ends: list[Values] = field(default_factory=list, init=False)

    def write(self, kind: str, values: Values) -> None:
        """Append a line, and flush it to the file."""
        line = json.dumps({kind: values})
        if self.file is not None:
            self.file.write(f"{line}\n")
            self.file.flush()
        self.take(json.loads(line))

    def start(self, values: Values) -> None:
        """Record a start. Raises InvalidRequest if the models differ from the first start's."""
        for first in self.starts[:1]:
            _check_same("models", first["models"], values["models"], NAME)
        self.write("start", values)

    def take(self, line: Values) -> None:
        """Add the content of a line to the records in memory."""
        ((kind, value),) = line.items()
        if kind == "text":
            self.texts[TextKey(*(value[name] for name in TextKey._fields))] = value
        elif kind != "run":
            {"start": self.starts, "end": self.ends}[kind].append(value)


def read_run(path: Path) -> Journal | None:
    """Read a journal. Returns None if the file is missing or its first line is incomplete.

    A damaged line, e.g. from a process killed while writing, is reported and skipped, and its
    output is generated again. Raises InvalidRequest if the first line is damaged.
    """
    run: Journal | None = None
    lines = path.read_bytes().rpartition(b"\n")[0].splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        place = f"{path} line {number}"
        try:
            values = json.loads(line)
            run = run or Journal({name: values["run"][name] for name in ("settings", "prompts")})
            run.take(values)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            if run is None:
                raise InvalidRequest(f"{place} is no line of a run: {error}") from error
            say(f"note: {place} is damaged and left out: {error}")
    return run


@contextmanager
def opened(directory: Path | None, plan: Values, *, anew: bool = False) -> Iterator[Journal]:
    """Resume or start the run in a directory. Without a directory the journal stays in memory.

    anew: replace an existing run

    Raises InvalidRequest if the directory has a different run, naming the differences, or if
    another process is writing to it.
    """
    if directory is None:
        yield Journal(plan)
        return
    path = directory / NAME
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory), path.open("a", encoding="utf-8") as file:
        run = None if anew else read_run(path)
        if run is None:
            file.truncate(0)
            run = Journal(plan, file)
            run.write("run", plan)
        for what, values in run.plan.items():
            _check_same(what, values, plan[what], str(path))
        file.truncate(path.read_bytes().rfind(b"\n") + 1)
        run.file = file
        yield run


def _check_same(what: str, before: Values, after: Values, path: str) -> None:
    pairs = [(name, before.get(name), after.get(name)) for name in {**before, **after}]
    differ = [f"{name} {json.dumps(a)}, then {json.dumps(b)}" for name, a, b in pairs if a != b]
    if differ:
        rest = f" and {len(differ) - 3} more" * (len(differ) > 3)
        raise InvalidRequest(
            f"{path} is a run with other {what}: {'; '.join(differ[:3])}{rest}: use the same ones "
            "or another --out"
        )


_PACKAGES = (
    "outrider", "torch", "transformers", "grpcio", "numpy", "torch-neuronx", "torch-xla",
    "neuronx-cc", "neuronx-distributed",
)  # fmt: skip


def environment() -> dict[str, Any]:
    """Describe this machine, its load and its software."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": processor(),
        "instructions": instructions(),
        "cpus": os.cpu_count(),
        "load": load(),
        "commit": commit(),
        "versions": {name: release for name in _PACKAGES if (release := installed_version(name))},
    }


def load() -> list[float] | None:
    """Return the load averages of this machine; None if the system does not report them."""
    return list(os.getloadavg()) if hasattr(os, "getloadavg") else None


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> str:
    """Return this checkout's git commit, with -dirty if modified; "unknown" without a checkout."""
    git = shutil.which("git")
    if git is None:
        return "unknown"
    words = [git, "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip() or "unknown"


def start_record(
    clients: Mapping[str, Client], drafts: Mapping[str, str], left_out: Mapping[str, str]
) -> dict[str, object]:
    """Return the journal's record of models, machine and link at the start of a run.

    clients: by arm name, target-only first
    drafts: fingerprints of the draft models, by arm name
    left_out: why an arm was skipped, by arm name
    """
    alone = next(iter(clients.values()))
    remote = alone.target.description
    target = f"{remote.model} {remote.model_fingerprint}"
    return {
        "models": {"target": target, "type": remote.dtype, "device": remote.device, **drafts},
        "target": remote.model,
        "draft": next((clients[name].draft for name in drafts), None),
        "shared": alone.shares_device,
        "left_out": left_out,
        "round_trip": measure_round_trip(alone.target.probe, say),
        "times": [[*shape, seconds] for shape, seconds in remote.times],
        "server": remote.server_version,
        "environment": environment(),
    }
