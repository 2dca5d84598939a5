"""Ends child processes, and this process when its parent is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

STOP_SECONDS = 10.0

READY = "listening on "
"""Start of the line with a server's bound address. It is printed once connections are accepted."""

BACKGROUND = "outrider load"
"""Name of threads whose work is discarded when the command ends."""


def leave(code: int) -> int:
    """Return the exit code of this process. If a BACKGROUND thread still runs, end the process at
    once instead: Python cannot stop such a thread, and may crash with it.
    """
    if any(thread.name == BACKGROUND for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Terminate the process, kill it after STOP_SECONDS, and wait for its end."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()


CHILD = "OUTRIDER_CHILD"
"""Environment variable of a command that ends with its standard input."""


def end_with_input() -> None:
    """From now on, end this process as SIGTERM does when its standard input is closed.

    The system closes it when the parent process is killed.
    """

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1024):  # a buffer's lock would break a normal exit
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="outrider input", daemon=True).start()
