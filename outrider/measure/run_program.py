"""Runs a program that a model wrote, under limits of time and memory (see sandbox.py).

It runs as a script. Its input is the exit status that reports success, and then the program.
"""

from __future__ import annotations

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


def main() -> None:
    status, program = int(sys.stdin.readline()), sys.stdin.read()
    code = compile(program, "<answer>", "exec")
    for name, limit in _LIMITS.items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    exec(code, {"__name__": "answer"})  # noqa: S102 (the purpose of this process)
    os._exit(status)


if __name__ == "__main__":
    main()
