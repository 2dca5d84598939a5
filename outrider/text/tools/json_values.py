"""JSON that models and clients write, read within bounds that keep later steps from failing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 100
"""Objects and lists within each other. Python's own reader and writer end near 1,000."""


def read_object(text: str) -> dict[str, Any] | None:
    """The object that a text is in JSON; None for any other text, and beyond MAX_DEPTH."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not nests_deeply(value) else None


def nests_deeply(value: Any) -> bool:
    """Whether objects and lists stand within each other beyond MAX_DEPTH."""
    level = [value] if isinstance(value, Mapping | list) else []
    for _ in range(MAX_DEPTH + 1):
        children = (each.values() if isinstance(each, Mapping) else each for each in level)
        level = [
            child for inner in children for child in inner if isinstance(child, Mapping | list)
        ]
        if not level:
            return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
