"""Reads JSON from models and clients, within bounds that keep later steps from failing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 100
"""Maximum nesting of objects and lists. Python's own JSON functions fail near 1,000."""


def read_object(text: str) -> dict[str, Any] | None:
    """Parse a JSON object; None for any other text, and for nesting beyond MAX_DEPTH."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not nests_deeply(value) else None


def nests_deeply(value: Any) -> bool:
    """Return whether objects and lists are nested beyond MAX_DEPTH."""
    level = [value] if isinstance(value, Mapping | list) else []
    for _ in range(MAX_DEPTH + 1):
        children = (parent.values() if isinstance(parent, Mapping) else parent for parent in level)
        level = [
            child for inner in children for child in inner if isinstance(child, Mapping | list)
        ]
        if not level:
            return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
