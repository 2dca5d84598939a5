"""A target as a process of its own on this machine, for the demo, the comparison and tests; it ends with its context."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from inference.errors import Unavailable
from outrider.serve import READY

_STOP_SECONDS = 10


def role_command(role: str, *arguments: str) -> list[str]:
    """The command line of another role of this installation, or this checkout."""
    return [sys.executable, "-m", "outrider", "--role", role, *arguments]


def role_environment() -> dict[str, str]:
    """The environment in which role_command finds the packages, also from a checkout that was not installed."""
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


@contextmanager
def target_process(arguments: Sequence[str] = ()) -> Iterator[str]:
    """Start `--role target` with these flags on a free port; yields HOST:PORT once it listens."""
    command = role_command("target", "--port", "0", *arguments)
    process = subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=role_environment()
    )
    try:
        yield _address(process)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[str]) -> str:
    """The address on the line that says the target listens; what it says before is kept for the error."""
    said = []
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(READY):
            threading.Thread(target=deque, args=(process.stderr, 0), daemon=True).start()  # a full pipe would stop the target
            return line.removeprefix(READY).split()[0]
        said.append(line)
    raise Unavailable(f"the target did not start: {''.join(said).strip() or 'it said nothing'}")
