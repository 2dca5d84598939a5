"""The runs of a file, each with its options: flags are looked up, and sweeps become runs. See
docs/runs.md.
"""

from __future__ import annotations

import math
import re
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from inference.command import nearest
from inference.errors import InvalidRequest
from inference.flags.command_line import ValueSource, read_yaml
from inference.flags.group import brief
from outrider.measure.autodraft import read_autodraft
from outrider.options.parsing import from_file
from outrider.options.roles import TextRole
from outrider.options.verbs import ROLES
from outrider.text.prompts import read_prompts

TEXT_ROLES = {name: model for name, model in ROLES.items() if issubclass(model, TextRole)}
"""Roles that make text, which runs may have."""

NOT_IN_RUNS = ("config", "profile", "list_models", "debug")
"""Flags of these roles that have no meaning in a run."""


MOST_RUNS = 1000
"""Runs that one file may ask for."""


FlagValue: TypeAlias = bool | int | float | str | None


def _listed(value: Any) -> Any:
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(one, FlagValue) for one in values):
        raise ValueError("a value, or a list of values to sweep, is needed")
    return value


Flags: TypeAlias = dict[str, Annotated[Any, AfterValidator(_listed)]]
"""Values by the names of their flags. A list of values is a sweep: a run for each."""


class RunFile(BaseModel):
    """Runs, and the flags of all of them. Raises InvalidRequest in one line.

    where: how the file is called in an error
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    flags: Flags = {}
    """stand in every run that does not give them"""
    runs: Annotated[list[Flags], Field(min_length=1)]
    """each with flags of its own, and `name`"""

    @classmethod
    def read(cls, where: str, content: Any) -> RunFile:
        """The runs that parsed YAML or JSON describes."""
        if not isinstance(content, dict):
            raise InvalidRequest(f"{where}: `runs:` with a list of runs is needed")
        try:
            return cls(**{str(name): part for name, part in content.items()})
        except ValidationError as error:
            raise InvalidRequest(f"{where}: {_problem(error)}") from error


def _problem(error: ValidationError) -> str:
    """The first error, with the place of it in front, such as runs[1].gamma."""
    first = error.errors(include_url=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    place, got = place.lstrip("."), brief(first["input"])
    needed = {
        "missing": "is missing: a list of runs is needed",
        "extra_forbidden": "is no part of a file of runs: these are flags and runs",
        "too_short": "one run at least is needed",
        "list_type": f"a list of runs is needed, got {got}",
        "dict_type": f"lines such as `gamma: 4` are needed, got {got}",
    }
    reason = first.get("ctx", {}).get("error") or first["msg"]
    return f"{place}: {needed.get(first['type'], f'{reason}, got {got}')}"


class NamedRun(NamedTuple):
    """A run of a file."""

    name: str  # the file's, and the values that a sweep chose: curve cs=50
    options: TextRole

    @property
    def directory(self) -> str:
        """The name as that of a directory."""
        return re.sub(r"[^\w.=-]+", "-", self.name).strip("-.")[:120]


def read_runs(path: Path) -> list[NamedRun]:
    """All runs of a YAML file, or of AutoDraft's XML (.xml). Nothing is started.

    Raises InvalidRequest in one line, which names the file and the place in it.
    """
    read = read_autodraft(path) if path.suffix == ".xml" else read_yaml(path, str(path))
    file = RunFile.read(str(path), read)
    if sum(_choices({**file.flags, **run}) for run in file.runs) > MOST_RUNS:
        raise InvalidRequest(
            f"{path}: its lists make more than {MOST_RUNS} runs: give fewer values"
        )
    runs = [run for index in range(len(file.runs)) for run in _swept(path, file, index)]
    names = [run.directory for run in runs]
    for run in runs:
        if not run.directory:
            raise InvalidRequest(f"{path}: a run is called {run.name}: a letter or digit is needed")
        if names.count(run.directory) > 1:
            raise InvalidRequest(f"{path}: two runs are called {run.name}: names that differ")
    return runs


def _swept(path: Path, file: RunFile, index: int) -> list[NamedRun]:
    """A run for each choice of one value of every list; the last list changes fastest."""
    given: Flags = {
        name.replace("-", "_"): value
        for flags in (file.flags, file.runs[index])
        for name, value in flags.items()
    }
    name = str(given.pop("name", f"run-{index + 1}"))
    lists = {flag: values for flag, values in given.items() if isinstance(values, list)}
    runs = []
    for values in product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        words = [name, *(f"{flag}={_short(value)}" for flag, value in chosen.items())]
        runs.append(NamedRun(" ".join(words), _options(f"{path}: runs[{index}]", given | chosen)))
    return runs


def _choices(flags: Flags) -> int:
    """Choices of one value of every list."""
    return math.prod(len(one) for one in flags.values() if isinstance(one, list))


def _short(value: FlagValue) -> str:
    """A value in a run's name. Of a file, its own name is enough."""
    return Path(value).stem if isinstance(value, str) and "/" in value else str(value)


def _options(where: str, values: dict[str, Any]) -> TextRole:
    """The options of a run. An error names where it stands."""
    role = str(values.get("role", "draft"))
    if role not in TEXT_ROLES:
        raise InvalidRequest(
            f"{where}.role {role}: one of {', '.join(TEXT_ROLES)} is needed"
            f"{nearest(role, TEXT_ROLES)}"
        )
    for name in NOT_IN_RUNS:
        if values.get(name):
            raise InvalidRequest(f"{where}.{name} has no meaning in a run")
    stated = {name: value for name, value in values.items() if value is not None}
    try:
        options = from_file(TEXT_ROLES[role], ValueSource(where + ".{}", stated))
        if "-" in (options.text.prompt, options.text.prompt_text):
            raise InvalidRequest("a run cannot be repeated with prompts of standard input")
        read_prompts(options.text)
    except InvalidRequest as error:
        told = str(error)
        raise InvalidRequest(told if told.startswith(where) else f"{where}: {told}") from error
    return options
