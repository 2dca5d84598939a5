"""A host as checks see it: the target's options, files of the system, and answers of programs."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from inference.artifact import Manifest, read_manifest
from outrider.options.roles import ServingRole

_SECONDS = 20.0


@dataclass(frozen=True)
class TargetHost:
    """The machine on which a target with these options runs, or is to run."""

    options: ServingRole
    root: Path = Path("/")  # below which the system's files and programs lie

    def path(self, absolute: str) -> Path:
        return self.root / absolute.lstrip("/")

    def text(self, absolute: str) -> str | None:
        """Content of a file of the system; None where it cannot be read."""
        try:
            return self.path(absolute).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def answer(self, program: str, *words: str) -> str | None:
        """What a program prints; None where it is missing, fails or takes too long."""
        try:
            done = subprocess.run(  # noqa: S603  # a program of the system, by its path
                [str(self.path(program)), *words],
                capture_output=True,
                text=True,
                timeout=_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    @cached_property
    def manifest(self) -> Manifest | None:
        """That of the artefact; None without one. Raises BadArtifact."""
        artifact = self.options.artifact
        return read_manifest(Path(artifact)) if artifact else None
