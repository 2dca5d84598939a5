"""The memory of the machine that builds, which is another one than what a target needs, and how
many graphs may be compiled on it at once.
"""

from __future__ import annotations

import os
from pathlib import Path

from compile.plan.device import GIB
from compile.plan.memory import footprint
from compile.spec import CompileSpec
from inference.artifact import NATIVE
from inference.model.config import ModelConfig

_SYSTEM = 2 * GIB
_MEMORY = Path("/proc/meminfo")


def worker_memory(target: str, weights: int) -> int:
    """Bytes that one process which builds graphs may take.

    weights: bytes of the model's. For a CPU a process holds them twice, since it compares the
        compiled graph's results with those of the model, beside its libraries and C++ compiler.
        Neuron's compiler takes up to 16 GiB whatever the model is.
    """
    return 2 * weights + 2 * GIB if target == "cpu" else 16 * GIB


def build_memory(config: ModelConfig, spec: CompileSpec) -> int:
    """Bytes that a machine needs to build the spec with one process: the system, that process, and
    for Neuron the weights of all ranks, which are dealt out by the process that starts it.
    """
    weights = footprint(config, spec).weights
    held = 0 if spec.target == "cpu" else weights * spec.tensor_parallel
    return _SYSTEM + held + worker_memory(spec.target, weights)


def compilers_at_once(target: str) -> int:
    """The number of graphs that a build for a Neuron target compiles at once here: half the
    processors, as far as memory allows; one by native PyTorch.
    """
    if target in NATIVE:
        return 1
    return workers_within(max(1, processors() // 2), worker_memory(target, 0))


def workers_within(most: int, need: int) -> int:
    """The number of workers of `need` bytes each that fit the free memory, from one to `most`."""
    return max(1, min(most, free_memory() // need))


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
