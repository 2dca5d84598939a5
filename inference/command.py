"""How every command ends: a line and an exit code for what went wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable

from inference.errors import OutriderError

FAILED, INTERRUPTED = 1, 130


def run_command(work: Callable[[], int], *, debug: bool, interrupted: str = "interrupted") -> int:
    """The exit code of `work`; an OutriderError becomes one line on stderr, or with `debug` its traceback."""
    try:
        return work()
    except OutriderError as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return INTERRUPTED
