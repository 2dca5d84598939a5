"""The runs of a file, each with its options: flags are looked up, and sweeps become runs. See
docs/runs.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

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
"""Roles that generate text, which runs may have."""

NOT_IN_RUNS = ("config", "profile", "debug")
"""Flags of these roles that have no meaning in a run."""

MAX_RUNS = 1000
"""Runs that one file may ask for."""

Flags: TypeAlias = dict[str, Any]
"""Values by the names of their flags. A list of values is a sweep: a run for each."""


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
    common, own = _checked(path, read)
    each = [{**common, **run} for run in own]
    if sum(math.prod(map(len, _lists(flags).values())) for flags in each) > MAX_RUNS:
        raise InvalidRequest(f"{path}: its lists make more than {MAX_RUNS} runs: give fewer values")
    runs = [run for index, flags in enumerate(each) for run in _swept(path, index, flags)]
    names = [run.directory for run in runs]
    for run in runs:
        if not run.directory:
            raise InvalidRequest(f"{path}: a run is called {run.name}: a letter or digit is needed")
        if names.count(run.directory) > 1:
            raise InvalidRequest(f"{path}: two runs are called {run.name}: names that differ")
    return runs


def _checked(path: Path, content: Any) -> tuple[Flags, list[Flags]]:
    """The flags of all runs, and those of each. Raises InvalidRequest for another form."""
    content = content if isinstance(content, dict) else {}
    runs = content.get("runs")
    if not isinstance(runs, list) or not runs:
        raise InvalidRequest(f"{path}: `runs:` with a list of runs is needed, got {brief(runs)}")
    if others := content.keys() - {"flags", "runs"}:
        raise InvalidRequest(f"{path}: {others.pop()}: flags and runs are needed, nothing else")
    places = {"flags": content.get("flags", {})}
    places |= {f"runs[{index}]": run for index, run in enumerate(runs)}
    for place, flags in places.items():
        if not isinstance(flags, dict):
            needed = f"lines such as `gamma: 4` are needed, got {brief(flags)}"
            raise InvalidRequest(f"{path}: {place}: {needed}")
        for name, value in flags.items():
            values = value if isinstance(value, list) else [value]
            if not values or not all(
                isinstance(one, bool | int | float | str | None) for one in values
            ):
                needed = f"a value, or a list of values to sweep, is needed, got {brief(value)}"
                raise InvalidRequest(f"{path}: {place}.{name}: {needed}")
    flags, *each = ({str(name).replace("-", "_"): value for name, value in one.items()}
                    for one in places.values())  # fmt: skip
    return flags, each


def _lists(flags: Flags) -> dict[str, list[Any]]:
    return {name: values for name, values in flags.items() if isinstance(values, list)}


def _swept(path: Path, index: int, flags: Flags) -> Iterator[NamedRun]:
    """A run for each choice of one value of every list; the last list changes fastest."""
    name, lists = str(flags.pop("name", f"run-{index + 1}")), _lists(flags)
    for values in product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        words = [name, *(f"{flag}={_short(value)}" for flag, value in chosen.items())]
        yield NamedRun(" ".join(words), _options(f"{path}: runs[{index}]", flags | chosen))


def _short(value: object) -> str:
    """A value in a run's name. Of a file, its own name is enough."""
    return Path(value).stem if isinstance(value, str) and "/" in value else str(value)


def _options(where: str, values: Flags) -> TextRole:
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
