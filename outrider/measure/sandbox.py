"""Runs programs that a model wrote in a sandbox: bubblewrap, and limits of time and memory.

The program sees Python and system libraries, read-only, and nothing else of this machine: no file
of the user, no network, no other process. It runs in a session and a process group of its own.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from inference.errors import InvalidRequest

MAX_WAIT = 120.0
"""Seconds after which a program is stopped that has not used its processor time: it waits."""

UNPROTECTED = "read, change and remove your files, use the network and signal your processes"
"""What a program may do outside the sandbox."""

_RUNNER = Path(__file__).with_name("run_program.py")
_FAILURE = "\nraise AssertionError\n"
_STATUSES = range(20, 120)
"""Exit statuses that neither Python nor bubblewrap uses for something else."""

_ISOLATION = (
    *("--unshare-all", "--new-session", "--die-with-parent", "--cap-drop", "ALL"),
    *("--dev", "/dev", "--remount-ro", "/dev", "--chdir", "/"),
)
_SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/nix/store", "/etc/ld.so.cache")
"""Paths that an interpreter and its libraries need. Those that exist are bound."""


def check_sandbox() -> None:
    """Raise InvalidRequest where bubblewrap is missing or cannot start."""
    if shutil.which("bwrap") is None:
        reason = "bubblewrap is not installed (Debian and Ubuntu: apt-get install bubblewrap)"
    elif not _sandbox_works():
        reason = "bubblewrap cannot start here: it needs user namespaces"
    else:
        return
    raise InvalidRequest(
        f"--run_code runs code in a sandbox, and {reason}. With --no_sandbox the code may "
        f"{UNPROTECTED}"
    )


def passes(program: str, *, sandboxed: bool) -> bool | None:
    """Return whether a program runs to its end; None where it waited for MAX_WAIT seconds.

    A program that also ends well where its last line fails has not passed: it left early, or
    reported success itself.
    """
    passed = _ends(program, sandboxed)
    if not passed:
        return passed
    return not _ends(program + _FAILURE, sandboxed)


def _ends(program: str, sandboxed: bool) -> bool | None:
    """Run a program. It has ended well where the runner exits with a status that is drawn here."""
    status = secrets.choice(_STATUSES)
    command = [*(_bubblewrap() if sandboxed else ()), sys.executable, "-I", "-X", "utf8"]
    runner = "/run_program.py" if sandboxed else str(_RUNNER)
    try:
        done = subprocess.run(  # noqa: S603 (our own script, by this Python)
            [*command, runner],
            input=f"{status}\n{program}".encode(errors="replace"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=MAX_WAIT,
            cwd="/",
            env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return done.returncode == status


def _bubblewrap() -> list[str]:
    """Return the command that runs another in the sandbox."""
    command = [shutil.which("bwrap") or "bwrap"]
    for path in dict.fromkeys((*_SYSTEM, sys.base_prefix, sys.prefix)):
        command += ["--ro-bind-try", path, path]
    command += ["--ro-bind", str(_RUNNER), "/run_program.py", *_ISOLATION]
    return [*command, "--remount-ro", "/"]


@cache
def _sandbox_works() -> bool:
    return _ends("", sandboxed=True) is True
