"""The user's cache directory, for files that can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory(kind: str) -> Path:
    """$XDG_CACHE_HOME/outrider/KIND, or ~/.cache/outrider/KIND. The directory may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outrider" / kind
