"""Contents of a file of runs, before any flag is looked up. See docs/runs.md."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from inference.errors import InvalidRequest
from inference.flags.command_line import read_yaml
from inference.flags.group import brief

Value: TypeAlias = bool | int | float | str | None


def _swept(value: Any) -> Any:
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(one, Value) for one in values):
        raise ValueError("a value, or a list of values to sweep, is needed")
    return value


Flags: TypeAlias = dict[str, Annotated[Any, AfterValidator(_swept)]]
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


def read_run_file(path: Path) -> RunFile:
    """A YAML file of runs. Raises InvalidRequest, which names file and line or place."""
    return RunFile.read(str(path), read_yaml(path, str(path)))


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
