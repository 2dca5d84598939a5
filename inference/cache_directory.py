"""Where this user's machine keeps what can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory(kind: str) -> Path:
    """$XDG_CACHE_HOME/outrider/KIND, else the same below ~/.cache; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outrider" / kind
