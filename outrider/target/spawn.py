"""Runs a target, or a proxy of targets, as a child process, for the demo, measurements and tests.
The child ends with its context, and also if this process is killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from inference.backends.wrappers import EMULATED
from inference.errors import Unavailable
from inference.flags.group import flags_of
from outrider.options.groups import TargetOptions
from outrider.processes import CHILD, READY, STOP_SECONDS, end

_LINES = 50  # latest log lines kept per target


def role_command(role: str, *arguments: str) -> list[str]:
    """Return the command line that runs a role from this installation or checkout."""
    return [sys.executable, "-m", "outrider", "--role", role, *arguments]


def role_environment() -> dict[str, str]:
    """Return the environment of a role's process, which finds packages in a bare checkout, too."""
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def child_environment() -> dict[str, str]:
    """Return the environment of a role that ends when its stdin closes: when its parent ends."""
    return {**role_environment(), CHILD: "1"}


def flag_words(values: Mapping[str, object]) -> list[str]:
    """Return the values as command-line flags. None and False are left out."""
    words = list[str]()
    for name, value in values.items():
        if value is not None and value is not False:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def target_words(options: TargetOptions, **changes: object) -> list[str]:
    """Return the flags of a target with these options and changes."""
    return flag_words(options.explicit(flags_of(TargetOptions)) | changes)


@contextmanager
def cold_start() -> Iterator[None]:
    """Neither read nor write stored times while this lasts, child processes included."""
    before = os.environ.get("XDG_CACHE_HOME")
    with TemporaryDirectory(prefix="outrider-") as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        try:
            yield
        finally:
            del os.environ["XDG_CACHE_HOME"]
            if before is not None:
                os.environ["XDG_CACHE_HOME"] = before


class Started(NamedTuple):
    """A listening process on this machine."""

    address: str  # HOST:PORT
    pid: int
    log_lines: deque[str]  # its latest log lines; complete to the end once the context has ended

    @property
    def emulation(self) -> str | None:
        """The target's report on the accuracy of emulated times. None before the target has ended,
        and without emulation.
        """
        return next((line.strip() for line in self.log_lines if line.startswith(EMULATED)), None)


def started(
    role: str, arguments: Sequence[str] = (), hear: Callable[[str], object] = lambda line: None
) -> AbstractContextManager[Started]:
    """Start a role on a free port. See listening().

    hear: called with each log line until the process listens
    """
    return listening("target", role_command(role, "--port", "0", *arguments), hear)


@contextmanager
def listening(
    name: str, command: Sequence[str], hear: Callable[[str], object] = lambda line: None
) -> Iterator[Started]:
    """Start a process that logs its address to stderr, and stop it when the context ends. Raises
    Unavailable, with the process's last log lines, if it does not start.
    """
    process = subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=child_environment()
    )
    log_lines: deque[str] = deque(maxlen=_LINES)
    listener = None
    try:
        address = _address(name, process, log_lines, hear)
        assert process.stderr is not None
        listener = threading.Thread(
            target=log_lines.extend, args=(process.stderr,), daemon=True
        )  # a full pipe would block the process
        listener.start()
        yield Started(address, process.pid, log_lines)
    finally:
        end(process)
        if listener is not None:
            listener.join(STOP_SECONDS)


def _address(
    name: str,
    process: subprocess.Popen[str],
    log_lines: deque[str],
    hear: Callable[[str], object],
) -> str:
    """Return the address on the READY line. Earlier lines are stored for the error message."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(READY):
            return line.removeprefix(READY).split()[0]
        log_lines.append(line)
        hear(line.rstrip())
    raise Unavailable(f"the {name} did not start: {''.join(log_lines).strip() or 'no output'}")
