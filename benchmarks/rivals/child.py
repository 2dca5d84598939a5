"""Engines in processes of their own, each with the packages of an environment of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from benchmarks.rivals.arm import Hear, Plays
from inference.command import say
from inference.errors import Unavailable
from outrider.processes import end
from outrider.text.completion import Request

ROOT = Path(__file__).parents[2]


class Child(NamedTuple):
    """A process that was started here. log: what it prints, but the answers to requests."""

    name: str
    process: subprocess.Popen[str]
    log: IO[bytes]

    def failure(self, lines: int = 1) -> Unavailable:
        """The error that its last lines tell of."""
        self.log.seek(0)
        said = self.log.read().decode(errors="replace").strip().splitlines()[-lines:]
        return Unavailable(f"{self.name} cannot play here: {' / '.join(said) or 'it ended'}")

    def ask(self, **request: Any) -> None:
        assert self.process.stdin is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)

    def hear(self) -> dict[str, Any]:
        """The next line of its answer. Raises Unavailable where it ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise self.failure()
        heard: dict[str, Any] = json.loads(line)
        return heard

    def play(self, arm: str, request: Request, hear: Hear) -> int:
        """Let an arm of worker.py generate a text."""
        stops, tokens = sorted(request.stop_ids), request.max_new_tokens
        self.ask(arm=arm, prompt=list(request.ids), tokens=tokens, stop_ids=stops)
        while "ids" in (answer := self.hear()):
            hear(answer["ids"])
        return int(answer["forwards"])


@contextmanager
def child(name: str, command: Sequence[str | Path], *, asked: bool = False) -> Iterator[Child]:
    """Run a command until this context ends. asked: it answers requests, as worker.py does"""
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=pipe if asked else none,
            stdout=pipe if asked else log,
            stderr=log,
            text=True,
            cwd=ROOT,
        )
        try:
            yield Child(name, process, log)
        finally:
            end(process)


@contextmanager
def peer(name: str, command: Sequence[str | Path], arms: Sequence[str]) -> Iterator[Plays]:
    """The arms of an engine that answers as worker.py does. Raises Unavailable, with the last line
    that it printed, where it cannot load them.
    """
    with child(name, [*command, *arms], asked=True) as process:
        say(", ".join(f"{package} {version}" for package, version in process.hear().items()))
        yield {arm: partial(process.play, arm) for arm in arms}


def environment(folder: Path, name: str) -> Path:
    """The Python of an environment with the packages that NAME.txt lists. It is made where it is
    missing or has others. Raises Unavailable where pip cannot install them.
    """
    home = (folder / name).absolute()
    python, installed = home / "bin/python", home / "installed.txt"
    packages = Path(__file__).with_name(f"{name}.txt").read_text(encoding="utf-8")
    if not installed.exists() or installed.read_text(encoding="utf-8") != packages:
        say(f"installing into {home}")
        venv: list[str | Path] = [sys.executable, "-m", "venv", home]
        pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet"]
        for command in (venv, [*pip, *packages.split()]):
            if subprocess.run(command, check=False).returncode:
                raise Unavailable(f"{name} cannot be installed: see pip's error above")
        installed.write_text(packages, encoding="utf-8")
    return python
