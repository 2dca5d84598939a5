"""Ends child processes, and ends this process when its parent exits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

STOP_SECONDS = 10.0

READY = "listening on "
"""Prefix of the line with a server's bound address, printed once it accepts connections."""

BACKGROUND = "outrider load"
"""Name of threads whose work is discarded when the command ends."""


def leave(code: int) -> int:
    """Return `code`. If a BACKGROUND thread is still running, exit at once with that code instead:
    Python cannot stop such a thread, and may crash if it exits normally.
    """
    if any(thread.name == BACKGROUND for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Terminate the process, kill it after STOP_SECONDS, and wait until it has ended."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()


CHILD = "OUTRIDER_CHILD"
"""Environment variable that tells a command to end when its standard input is closed."""


def end_with_input() -> None:
    """Start a thread that sends this process SIGTERM when its standard input is closed.

    The system closes standard input when the parent process is killed.
    """

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1024):  # sys.stdin's lock would break a normal exit
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="outrider input", daemon=True).start()
