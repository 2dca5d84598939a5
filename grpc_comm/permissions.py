"""Checks who may read or write sensitive files; errors name the command that fixes the mode."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from inference.errors import InvalidRequest

_GROUP_OR_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_READ = stat.S_IROTH


def read_guarded(path: Path) -> bytes:
    """Read a file that only its owner may write.

    Raises InvalidRequest if other users may write it, OSError if it cannot be read.
    """
    content, mode = _content_and_mode(path)
    if mode & _GROUP_OR_OTHERS_WRITE:
        remedy = f"and so let anyone in: chmod go-w {shlex.quote(str(path))}"
        raise InvalidRequest(f"{path}: others may write it (mode {mode:04o}), {remedy}")
    return content


def read_secret(path: Path) -> bytes:
    """Read a file that only its owner may write, and only its owner and group may read.

    The group may read it because container platforms mount secrets that way for processes without
    root. Raises InvalidRequest for any further access, OSError if the file cannot be read.
    """
    content, mode = _content_and_mode(path)
    if mode & (_GROUP_OR_OTHERS_WRITE | _OTHERS_READ):
        remedy = f"chmod 600 {shlex.quote(str(path))} (a container's mounted secret: mode 0440)"
        raise InvalidRequest(f"{path}: others may read or write it (mode {mode:04o}): {remedy}")
    return content


def _content_and_mode(path: Path) -> tuple[bytes, int]:
    """Return content and mode of a file, both from the same descriptor, so that they match.

    The mode is 0 on systems without POSIX permissions.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        guarded = os.name == "posix" and stat.S_ISREG(status.st_mode)
        return file.read(), stat.S_IMODE(status.st_mode) if guarded else 0
