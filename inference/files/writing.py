"""The user's cache directory, atomic writes (a file is written completely or not at all), and locks
on directories.
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
    """Return $XDG_CACHE_HOME/outrider/KIND, or ~/.cache/outrider/KIND. It may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outrider" / kind


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a new file that replaces `path` at the end; on failure remove it. Raises OSError."""
    temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}.{secrets.token_hex(4)}")
    temporary.open("xb").close()
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically, creating its directory. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock a directory against other writers. Raises InvalidRequest with the process that holds it.

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
