"""The product's commands in this process and on a terminal, and records of finished texts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import fields, replace
from typing import Any, NamedTuple

import pytest

from inference.text_log import DecodeStatistics, Traffic
from outrider.cli import main
from outrider.text.completion import Completion


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


TOKENS = re.compile(r"\x1b\[\??[0-9;]*([A-Za-z])|(.)", re.DOTALL)


class Terminal:
    """A screen that obeys the control sequences of rich. It is too large to scroll or to wrap."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.rows = [""] * 50
        self.row = self.column = 0
        self._streams = ExitStack()

    def __enter__(self) -> Terminal:
        """It is stdout and stderr from here on."""
        self._streams.enter_context(redirect_stdout(self))
        self._streams.enter_context(redirect_stderr(self))
        return self

    def __exit__(self, *_error: object) -> None:
        self._streams.close()

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        pass

    def write(self, text: str) -> int:
        for found in TOKENS.finditer(text):
            control, letter = found.groups()
            if control == "K":
                self.rows[self.row] = ""
            elif control == "A":
                self.row -= 1
            elif letter == "\r":
                self.column = 0
            elif letter == "\n":
                self.row, self.column = self.row + 1, 0
            elif letter:
                line = self.rows[self.row].ljust(self.column)
                self.rows[self.row] = line[: self.column] + letter + line[self.column + 1 :]
                self.column += 1
        return len(text)

    @property
    def shown(self) -> list[str]:
        return [row.rstrip() for row in self.rows]

    @property
    def everything(self) -> str:
        return "\n".join(self.shown).rstrip()


_TRAFFIC, _ACCEPTED = ({one.name for one in fields(kind)} for kind in (Traffic, DecodeStatistics))


def changed(done: Completion, **changes: Any) -> Completion:
    """The record with other values, those of its Traffic and DecodeStatistics by name."""
    traffic = {name: changes.pop(name) for name in _TRAFFIC & changes.keys()}
    accepted = {name: changes.pop(name) for name in _ACCEPTED & changes.keys()}
    candidates = changes.pop("candidates", None)
    counts = replace(done.traffic, **traffic)
    if candidates is not None:
        counts = replace(counts, nodes=counts.forwards + candidates)
    counted = replace(done.accepted, **accepted)
    return replace(done, traffic=counts, accepted=counted, **changes)


def completion(tokens: int, **values: Any) -> Completion:
    """A text of so many tokens. Prompt 0 has three."""
    return changed(Completion(0, "p", 0, 3, token_ids=list(range(tokens))), **values)
