"""Objects of the product that are still reachable from a process's tables."""

from __future__ import annotations

import gc
from collections import Counter
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

EVERYWHERE = (type, ModuleType, FunctionType, FrameType, CodeType)
"""What leads to all of the program."""


def reachable(*roots: Any) -> Counter[str]:
    """Count what can be reached from here, by its type. The simulation is left out."""
    seen, found, left = dict[int, Any](), Counter[str](), list(roots)
    while left:
        one = left.pop()
        kind = type(one)
        if id(one) in seen or isinstance(one, EVERYWHERE) or kind.__module__.startswith("tests."):
            continue
        seen[id(one)] = one
        found[kind.__name__] += 1
        left += gc.get_referents(one)
    return found
