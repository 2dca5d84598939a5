"""A stand-in for TorchNeuron's compiler: a backend of torch.compile that runs graphs on the CPU and
refuses shapes and collectives that the real one refuses.

Stated by AWS's documents: shapes are static, nothing falls back, and inputs that a graph writes
stay where they are. As the real one it keeps what it compiled in the directory that
TORCH_NEURONX_NEFF_CACHE_DIR names, by a hash of the program. Operations are for
tests/support/compiler_rules.py to judge.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.utils import make_boxed_func

from inference.backends.native.sdk import Machine

COLLECTIVES = frozenset(("all_reduce", "all_gather_into_tensor", "wait_tensor"))


def strict(graph: fx.GraphModule, examples: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Compile a graph as TorchNeuron would: RuntimeError for what it would not take."""
    from torch._dynamo.backends.common import aot_autograd  # seconds, where nothing compiles

    backend = aot_autograd(fw_compiler=_checked, keep_inference_input_mutations=True)
    made: Callable[..., Any] = backend(graph, examples, **options)
    return made


def dying_once(graph: fx.GraphModule, examples: Sequence[Any], **options: Any) -> Any:
    """Compile as `strict` does, but for the first graph of all, at which the compiler dies."""
    death = Path(os.environ[DEATH])
    if death.exists():
        return strict(graph, examples, **options)
    death.touch()
    raise RuntimeError("neuronx-cc compilation failed with 70. Check compiler logs.")


DEATH = "TEST_COMPILER_DEATH"
CPU = Machine("cpu", strict, "gloo")
"""A machine whose ranks run on this one's processors."""


def _checked(graph: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    for example in examples:
        if not isinstance(example, torch.Tensor):
            raise RuntimeError(f"dynamic shapes are not supported: {example} is an input")
    for node in graph.graph.nodes:
        if node.op != "call_function":
            continue
        name = getattr(node.target, "overloadpacket", node.target).__name__
        if "c10d" in str(node.target) and name not in COLLECTIVES:
            raise RuntimeError(f"the collective {name} is not supported")
    _keep(graph)
    boxed: Callable[..., Any] = make_boxed_func(graph.forward)
    return boxed


def _keep(graph: fx.GraphModule) -> None:
    """Leave a file for this program, unless there is one."""
    kept = Path(os.environ["TORCH_NEURONX_NEFF_CACHE_DIR"])
    described = [graph.code, *(str(node.meta.get("val")) for node in graph.graph.nodes)]
    digest = hashlib.sha256("".join(described).encode()).hexdigest()
    path = kept / digest[:2] / f"{digest}.neff"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
