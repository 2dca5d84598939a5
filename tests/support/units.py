"""Systemd units, read and started without systemd: their command, environment and user."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path


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
        pairs = (pair.partition("=") for line in self.all("Environment") for pair in line.split())
        return {name: value for name, _, value in pairs}

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
