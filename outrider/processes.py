"""The end of a process that was started here, and of one whose starter is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

STOP_SECONDS = 10.0

BACKGROUND = "outrider load"
"""Name of threads whose work nobody needs once the command has ended."""


def leave(code: int) -> int:
    """Return the exit code of this process. Where a BACKGROUND thread still works, end the process
    at once instead: Python cannot end such a thread, and may crash with it.
    """
    if any(thread.name == BACKGROUND for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Ask the process to end, and kill it after STOP_SECONDS. It has ended then."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()


def end_with_input() -> None:
    """From here on, end this process as SIGTERM does once nobody holds the other end of its input.

    The system closes that end when the program that started this one is killed.
    """

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1024):  # a buffer's lock would break the normal end
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="outrider input", daemon=True).start()
