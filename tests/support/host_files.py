"""Files of a host, read without systemd or a container daemon: units and Dockerfiles."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path


def _variables(pairs: str) -> dict[str, str]:
    """The values of NAME=VALUE NAME=VALUE."""
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs.split())}


@dataclass(frozen=True)
class UnitFile:
    """The settings of a unit, in their order; one may stand several times."""

    settings: tuple[tuple[str, str], ...]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.settings if key == name]

    def one(self, name: str) -> str:
        (value,) = self.all(name)
        return value

    @property
    def environment(self) -> dict[str, str]:
        """What Environment= sets."""
        return _variables(" ".join(self.all("Environment")))

    def command(self, name: str, variables: dict[str, str]) -> list[str]:
        """The words of ExecStart= or another command, with ${NAME} replaced."""
        text = self.one(name).lstrip("+-@:!")
        for variable, value in variables.items():
            text = text.replace(f"${{{variable}}}", value)
        return shlex.split(text)


def read_unit(path: Path) -> UnitFile:
    lines = path.read_text().splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
    return UnitFile(tuple((name, value) for name, _, value in pairs))


@dataclass(frozen=True)
class Dockerfile:
    """The instructions of the last stage, in their order."""

    instructions: tuple[tuple[str, str], ...]

    def last(self, name: str) -> str:
        return [value for key, value in self.instructions if key == name][-1]

    def words(self, name: str) -> list[str]:
        """The words of an instruction in exec form; of HEALTHCHECK, of its command."""
        found: list[str] = json.loads(re.search(r"\[.*\]", self.last(name))[0])  # type: ignore[index]
        return found

    @property
    def environment(self) -> dict[str, str]:
        return _variables(self.last("ENV"))


def read_dockerfile(path: Path) -> Dockerfile:
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    start = max(at for at, (name, _) in enumerate(lines) if name == "FROM")
    return Dockerfile(tuple((name, value) for name, value in lines[start:]))
