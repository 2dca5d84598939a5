"""Runs a program that a model wrote, in a process that may do little. Linux has all of the bounds.

It is run as a script, reads the program from its input, and writes to its output, last of all,
the word that the input begins with. So a program that leaves early has not passed.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys

CPU_SECONDS, BYTES, FILES = 5, 2**30, 32
"""Processor time and memory of the process, and files that it has open at once."""

_LIMITS = {
    "RLIMIT_CPU": CPU_SECONDS,
    "RLIMIT_AS": BYTES,
    "RLIMIT_NOFILE": FILES,
    "RLIMIT_FSIZE": 0,
    "RLIMIT_CORE": 0,
    "RLIMIT_NPROC": 0,
}

_CREATE_RULESET, _RESTRICT_SELF, _NO_NEW_PRIVILEGES = 444, 446, 38
"""System calls of Landlock, and the option of prctl that it asks for."""

_WRITES = 0b1_1111_1111_0011
"""Landlock's rights to execute a file, to write, remove and make files of all kinds. Bits 2 and 3,
to read files and directories, stay free.
"""

_TRUNCATES, _KNOWS_TRUNCATES = 1 << 14, 3
"""The right to cut files, and the version of Landlock that has it."""


def forbid_files() -> bool:
    """Forbid this process to write, make, remove or execute any file; whether that was possible."""
    if sys.platform != "linux":
        return False
    kernel = ctypes.CDLL(None, use_errno=True)
    version = kernel.syscall(_CREATE_RULESET, None, 0, 1)
    rights = ctypes.c_uint64(_WRITES | (_TRUNCATES if version >= _KNOWS_TRUNCATES else 0))
    rules = kernel.syscall(_CREATE_RULESET, ctypes.byref(rights), ctypes.sizeof(rights), 0)
    if rules < 0 or kernel.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        return False
    return bool(kernel.syscall(_RESTRICT_SELF, rules, 0) == 0)


def main() -> None:
    passed, program = sys.stdin.readline(), sys.stdin.read()
    said, nowhere = os.dup(1), os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    code = compile(program, "<answer>", "exec")
    for name, most in _LIMITS.items():
        resource.setrlimit(getattr(resource, name), (most, most))
    forbid_files()
    exec(code, {"__name__": "answer"})  # noqa: S102 (the purpose of this process)
    os.write(said, passed.encode())


if __name__ == "__main__":
    main()
