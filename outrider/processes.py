"""The end of a process that was started here."""

from __future__ import annotations

import subprocess

STOP_SECONDS = 10.0


def end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Ask the process to end, and kill it after STOP_SECONDS. It has ended then."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
