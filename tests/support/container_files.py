"""Dockerfiles, read: the settings of the last stage, with which its image runs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path


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
        pairs = (pair.partition("=") for pair in self.last("ENV").split())
        return {name: value for name, _, value in pairs}


def read_dockerfile(path: Path) -> Dockerfile:
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    start = max(at for at, (name, _) in enumerate(lines) if name == "FROM")
    return Dockerfile(tuple((name, value) for name, value in lines[start:]))
