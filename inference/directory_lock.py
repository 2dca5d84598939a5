"""Directories that one process writes."""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inference.errors import InvalidRequest


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Let no other process write to a directory. Raises InvalidRequest naming the one that does.

    A lock is never stale: the system releases it when its process ends.
    """
    with (directory / ".lock").open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise InvalidRequest(
                f"{directory} is being written by {file.read() or 'another process'}: wait for "
                "it, end it, or name another directory"
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}")
        file.flush()
        yield
