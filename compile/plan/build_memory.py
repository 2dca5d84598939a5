"""The memory of the machine that builds, which is another one than what a target needs."""

from __future__ import annotations

from compile.plan.device import GIB
from compile.plan.memory import footprint
from compile.spec import CompileSpec
from inference.model.config import ModelConfig

_SYSTEM = 2 * GIB


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
