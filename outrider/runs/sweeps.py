"""The runs of a file, each with its options: flags are looked up, and sweeps become runs."""

from __future__ import annotations

import math
import re
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from inference.command import nearest
from inference.errors import InvalidRequest
from inference.flags.command_line import ValueSource
from outrider.options.parsing import from_file
from outrider.options.roles import ROLES, TextRole
from outrider.runs.autodraft import read_autodraft
from outrider.runs.run_file import Flags, RunFile, Value, read_run_file
from outrider.text.prompts import read_prompts

TEXT_ROLES = {name: model for name, model in ROLES.items() if issubclass(model, TextRole)}
"""Roles that make text, which runs may have."""

NOT_IN_RUNS = ("config", "print_config", "profile", "list_models", "debug")
"""Flags of these roles that have no meaning in a run."""


MOST_RUNS = 1000
"""Runs that one file may ask for."""


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
    file = read_autodraft(path) if path.suffix == ".xml" else read_run_file(path)
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


def _short(value: Value) -> str:
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
