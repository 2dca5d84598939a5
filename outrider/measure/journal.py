"""The file of a run: a line for each text, written when it is done, from which a run goes on.

Each line is a JSON object of one field: `run` (the first line: settings and prompts), `start` and
`end` (machine, models and load then), or `text`, a Completion's record with its key and cost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeAlias

from inference.command import say
from inference.errors import InvalidRequest
from inference.files import locked

NAME = "run.jsonl"
"""Name of the file in a run's directory."""

Values: TypeAlias = dict[str, Any]


class TextKey(NamedTuple):
    """One turn of a prompt, made by one arm in one repetition over one link."""

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


def plan_of(settings: Mapping[str, Any], prompts: Mapping[str, Any]) -> Values:
    """Settings, and a digest of each prompt: a run is continued with the same ones.

    prompts: plain data by the name of the prompt, SET/KIND/NAME
    """
    digests = {
        name: sha256(json.dumps(prompt).encode()).hexdigest()[:16]
        for name, prompt in prompts.items()
    }
    plan: Values = json.loads(json.dumps({"settings": settings, "prompts": digests}))
    return plan


@dataclass
class RunRecord:
    """All that a run's file holds. ends: one where all texts were made"""

    plan: Values
    starts: list[Values] = field(default_factory=list)
    texts: dict[TextKey, Values] = field(default_factory=dict)
    ends: list[Values] = field(default_factory=list)

    def take(self, line: Values) -> None:
        """Add what a line says."""
        for kind, value in line.items():
            if kind == "text":
                self.texts[TextKey(*(value[name] for name in TextKey._fields))] = value
            else:
                {"start": self.starts, "end": self.ends}[kind].append(value)


def read_run(path: Path) -> RunRecord | None:
    """The run of a file; None where there is none, or not even its first line.

    A damaged line, such as the last one of a writer that was killed, is reported and left out; its
    text is made again. Raises InvalidRequest where the first line is damaged.
    """
    try:
        lines = path.read_bytes().rpartition(b"\n")[0].splitlines()
    except FileNotFoundError:
        return None
    run: RunRecord | None = None
    for number, line in enumerate(lines, start=1):
        place = f"{path} line {number}"
        try:
            values = json.loads(line)
            if run is None:
                run = RunRecord({name: values["run"][name] for name in ("settings", "prompts")})
            else:
                run.take(values)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            if run is None:
                raise InvalidRequest(f"{place} is no line of a run: {error}") from error
            say(f"note: {place} is damaged and left out: {error}")
    return run


@dataclass(frozen=True)
class Journal:
    """A run's file that is being written, behind what it holds already. file: None where the
    records stay in memory
    """

    file: TextIO | None
    known: RunRecord

    def write(self, kind: str, values: Values) -> None:
        """Add a line, which outlives this process."""
        line = json.dumps({kind: values})
        if self.file is not None:
            self.file.write(f"{line}\n")
            self.file.flush()
        if kind != "run":
            self.known.take(json.loads(line))

    def start(self, here: Values) -> None:
        """Note a start. Raises InvalidRequest for other models than at the first one."""
        for first in self.known.starts[:1]:
            _check_same("models", first["models"], here["models"], NAME)
        self.write("start", here)


@contextmanager
def opened(
    directory: Path | None, plan: Values, *, replace_finished: bool = False
) -> Iterator[Journal]:
    """Continue the run of this directory, or begin it; without one it stays in memory.

    replace_finished: whether a run that has ended is measured anew

    Raises InvalidRequest for another run, and says what differs, and where another process writes
    it.
    """
    if directory is None:
        yield Journal(None, RunRecord(plan))
        return
    path = directory / NAME
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory), path.open("a", encoding="utf-8") as file:
        known = read_run(path)
        if replace_finished and known and known.ends:
            file.truncate(0)
            known = None
        for what, values in known.plan.items() if known else ():
            _check_same(what, values, plan[what], str(path))
        file.truncate(path.read_bytes().rfind(b"\n") + 1)
        journal = Journal(file, known or RunRecord(plan))
        if known is None:
            journal.write("run", plan)
        yield journal


def _check_same(what: str, before: Values, after: Values, path: str) -> None:
    pairs = [(name, before.get(name), after.get(name)) for name in {**before, **after}]
    differ = [f"{name} {json.dumps(a)}, then {json.dumps(b)}" for name, a, b in pairs if a != b]
    if differ:
        more = f" and {len(differ) - 3} more" * (len(differ) > 3)
        raise InvalidRequest(
            f"{path} is a run with other {what}: {'; '.join(differ[:3])}{more}: give what it was "
            "begun with, or another --out"
        )
