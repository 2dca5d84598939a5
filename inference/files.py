"""The cache directory of a user, and atomic writes: a file is written completely or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
