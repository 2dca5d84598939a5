"""One build at a time in a directory."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inference.errors import InvalidRequest


@contextmanager
def building_alone(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file; raises InvalidRequest naming the process that holds it. `what`: of whom
    it is held, in words.

    The system lets go of a lock when its process ends, whichever way, so that none is ever stale.
    The file stays: it is the lock on it that counts, and its content only says whose that is.
    """
    import fcntl

    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read() or "another process"
            raise InvalidRequest(
                f"{what} is being built by {holder}: wait for it, end it, or name another directory"
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)
