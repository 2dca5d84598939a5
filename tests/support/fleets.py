"""Fleets on Ray Serve, started by the real command line, and their replicas as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from outrider.target.spawn import role_environment
from tests.support.repository import ROOT

START_SECONDS, STOP_SECONDS = 300.0, 60.0
_REPLICA = "ray::ServeReplica"


class RunningFleet(NamedTuple):
    """A fleet that serves. Its cluster is this process's own."""

    address: str
    process: subprocess.Popen[str]

    @property
    def replicas(self) -> list[int]:
        return [pid for pid in _descendants(self.process.pid) if _title(pid).startswith(_REPLICA)]


@contextmanager
def running_fleet(*flags: str) -> Iterator[RunningFleet]:
    """`outrider deploy ray` with these flags, until the context ends."""
    port = 20_000 + os.getpid() % 10_000  # a free one of the system's may be taken until Ray is up
    words = ["-m", "outrider", "deploy", "ray", "--port", str(port), "--cpus", "0.5", *flags]
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        env=role_environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if line.startswith("listening on"):
                    break
            else:
                raise AssertionError("".join(said[-20:]))
            yield RunningFleet(f"127.0.0.1:{port}", process)
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[str]) -> None:
    """Ask it to end; what is left of it and its cluster after a while is killed."""
    started = _descendants(process.pid)
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
    for pid in started:
        if _title(pid).startswith("ray::") or "/ray" in _title(pid):
            os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    below: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        below.setdefault(int(after_name[1]), []).append(int(stat.parent.name))
    found, left = list[int](), [pid]
    while left:
        children = below.get(left.pop(), [])
        found += children
        left += children
    return found


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
