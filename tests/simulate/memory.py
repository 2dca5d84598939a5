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
    seen, found, left = dict[int, Any](), Counter[type](), list(roots)
    left_out = dict[type, bool]()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        kind = type(one)
        if kind not in left_out:
            left_out[kind] = issubclass(kind, EVERYWHERE) or kind.__module__.startswith("tests.")
        if left_out[kind]:
            continue
        seen[id(one)] = one
        found[kind] += 1
        left += gc.get_referents(one)
    names = Counter[str]()
    for kind, count in found.items():
        names[kind.__name__] += count
    return names
