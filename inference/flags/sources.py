"""Reads option values. The command line comes before OUTRIDER_... of the environment, that before a
YAML file, that before the defaults.
"""

from __future__ import annotations

import os
from collections import ChainMap
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from inference.errors import InvalidRequest
from inference.flags.group import Group, flags_of, refusal

PREFIX = "OUTRIDER_"
Model = TypeVar("Model", bound=Group)


class ValueSource(NamedTuple):
    """Values by the names of their flags. `label` says how a flag is called; {} stands for its
    name.
    """

    label: str
    values: dict[str, Any]

    def call(self, name: str) -> str:
        return self.label.format(name.upper() if self.label.startswith(PREFIX) else name)


def environment(model: type[Group]) -> ValueSource:
    """The values that the environment gives to this model's flags."""
    variables = {name: f"{PREFIX}{name.upper()}" for name in flags_of(model)}
    given = {name: os.environ[one] for name, one in variables.items() if one in os.environ}
    return ValueSource(PREFIX + "{}", given)


def read_file(path: Path) -> ValueSource:
    """The values of a YAML file. Raises InvalidRequest where a line is not `flag: value`."""
    values = read_yaml(path, f"--config {path}")
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise InvalidRequest(f"--config {path}: lines such as `batch: 8` are needed")
    return ValueSource(f"{path}: {{}}", {name.replace("-", "_"): values[name] for name in values})


def read_yaml(path: Path, called: str) -> Any:
    """The content of a YAML file. Raises InvalidRequest, which calls the file so."""
    import yaml  # takes longer than all flags together, and few commands read a file

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InvalidRequest(f"{called} cannot be read: {reason}") from error


def resolve(model: type[Model], sources: list[ValueSource]) -> Model:
    """The options; an earlier source comes before a later one. Raises InvalidRequest, which names
    the value as its source writes it.
    """

    def label(name: str) -> str:
        given = (source.call(name) for source in sources if name in source.values)
        return next(given, f"--{name}")

    try:
        return model(**ChainMap(*(source.values for source in sources)))
    except InvalidRequest as error:
        if isinstance(error.__cause__, ValidationError):
            raise InvalidRequest(refusal(model, error.__cause__, label)) from error
        raise


def origins(options: Group, sources: list[ValueSource]) -> dict[str, tuple[Any, str]]:
    """Every value by its flag's name, and where it comes from."""
    values = options.values()
    calls = dict.fromkeys(values, "default")
    for source in reversed(sources):
        calls |= {name: source.call(name) for name in source.values}
    return {name: (values[name], calls[name]) for name in values}
