"""How many graphs may be compiled at once on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from compile.plan.build_memory import worker_memory
from inference.artifact import NATIVE

_MEMORY = Path("/proc/meminfo")


def free_memory() -> int:
    """Bytes that programs can still have, without what the system would give up for them."""
    try:
        for line in _MEMORY.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def workers_within(most: int, need: int) -> int:
    """How many workers of `need` bytes each fit the free memory; `most` at most, one at least."""
    return max(1, min(most, free_memory() // need))


def compilers_at_once(target: str) -> int:
    """How many graphs a build for a Neuron target compiles at once here: half the processors, as
    far as memory allows; one by native PyTorch.
    """
    if target in NATIVE:
        return 1
    return workers_within(max(1, processors() // 2), worker_memory(target, 0))
