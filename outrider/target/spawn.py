"""Runs a target as a process of its own on this machine, for the demo, measurements and tests. It
ends with its context, and with this process where that is killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from inference.backends.timed import EMULATED
from inference.errors import Unavailable
from inference.flags.group import flags_of
from outrider.options.groups import TargetOptions
from outrider.processes import STOP_SECONDS, end
from outrider.target.target import READY

_LINES = 50  # lines that are kept of what a target says


def role_command(role: str, *arguments: str) -> list[str]:
    """The command line of another role of this installation, or this checkout."""
    return [sys.executable, "-m", "outrider", "--role", role, *arguments]


def role_environment() -> dict[str, str]:
    """The environment in which role_command finds the packages, also from a checkout that is not
    installed.
    """
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def flag_words(values: Mapping[str, object]) -> list[str]:
    """The values as a command line, by the names of their flags. None and False are left out."""
    words = list[str]()
    for name, value in values.items():
        if value is not None and value is not False:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def target_words(options: TargetOptions, **more: object) -> list[str]:
    """The command line of a target of these options, with more of its flags."""
    stated = options.stated()
    return flag_words({name: stated.get(name) for name in flags_of(TargetOptions)} | more)


@contextmanager
def cold_start() -> Iterator[None]:
    """Let this process, and those that it starts, find no stored times, and store none."""
    before = os.environ.get("XDG_CACHE_HOME")
    with TemporaryDirectory(prefix="outrider-") as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        try:
            yield
        finally:
            del os.environ["XDG_CACHE_HOME"]
            if before is not None:
                os.environ["XDG_CACHE_HOME"] = before


class StartedTarget(NamedTuple):
    """A target that runs on this machine."""

    address: str  # HOST:PORT
    pid: int
    said: deque[str]  # its latest lines; after the context also those of its end

    @property
    def emulation(self) -> str | None:
        """Report of how well the target kept emulated times. None before its end, and where it
        emulates nothing.
        """
        return next((line.strip() for line in self.said if line.startswith(EMULATED)), None)


@contextmanager
def started(
    role: str, arguments: Sequence[str] = (), hear: Callable[[str], object] = lambda line: None
) -> Iterator[StartedTarget]:
    """Start a role that serves on a free port, and stop it with this context. Raises Unavailable,
    with the process's last lines, when it does not start.

    hear: is given each line that the process says before it listens
    """
    command = role_command(role, "--port", "0", "--end_with_input", *arguments)
    process = subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=role_environment()
    )
    said: deque[str] = deque(maxlen=_LINES)
    listener = None
    try:
        address = _address(process, said, hear)
        assert process.stderr is not None
        listener = threading.Thread(
            target=said.extend, args=(process.stderr,), daemon=True
        )  # a full pipe would stop the target
        listener.start()
        yield StartedTarget(address, process.pid, said)
    finally:
        end(process)
        if listener is not None:
            listener.join(STOP_SECONDS)


def _address(
    process: subprocess.Popen[str], said: deque[str], hear: Callable[[str], object]
) -> str:
    """The address on the line that says the target listens. Earlier lines are kept for the
    error.
    """
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(READY):
            return line.removeprefix(READY).split()[0]
        said.append(line)
        hear(line.rstrip())
    raise Unavailable(f"the target did not start: {''.join(said).strip() or 'it said nothing'}")
