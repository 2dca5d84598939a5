"""The cache directory of a user, atomic writes (a file is written completely or not at all), and
directories that one process writes.
"""

from __future__ import annotations

import fcntl
import os
import platform
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inference.errors import InvalidRequest


def cache_directory(kind: str) -> Path:
    """$XDG_CACHE_HOME/outrider/KIND, or ~/.cache/outrider/KIND. The directory may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outrider" / kind


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file beside `path`, which replaces it at the end. A failure removes the new file.

    Raises OSError.
    """
    part = path.with_name(f".{path.name[:100]}.{os.getpid()}.{secrets.token_hex(4)}")
    part.open("xb").close()
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a text to a file in UTF-8, atomically. Creates the directory. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock a directory against other writers. Raises InvalidRequest that names the lock's holder.

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
