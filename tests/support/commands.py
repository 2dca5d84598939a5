"""Commands run in the test's own process, and what they said."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from outrider.cli import main


class Ended(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        """The texts that --json has printed. The command has succeeded."""
        assert self.code == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]

    def assert_usage_error(self, *shown: str) -> None:
        """It ended with exit code 2, and with one line on stderr that has all of these words."""
        assert (self.code, self.out) == (2, "")
        (line,) = self.err.splitlines()
        assert all(word in line for word in shown), line

    def assert_failed(self, *shown: str) -> None:
        """It ended with exit code 1, and one line of `error: ` and all of these words."""
        (line,) = (line for line in self.err.splitlines() if line.startswith("error: "))
        assert self.code == 1
        assert all(word in line for word in shown), line


Run = Callable[..., Ended]
"""Runs `outrider` with these words."""


def runner(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: object) -> Ended:
        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Ended(code, *capsys.readouterr())

    return run
