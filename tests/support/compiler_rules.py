"""What neuronx-cc and the engines of a NeuronCore refuse or compute wrongly, checked on the
operations of a call. On the meta device sizes are real and there is no data; on a CPU the values of
integers are checked, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from compile.parallel import layers_of, rank_module
from compile.spec import CompileSpec
from inference.backends.native.program import ALONE, Collectives, InPlaceGraph, rank_layers
from inference.backends.neuron.sdk import Sdk
from inference.files.artifact import NATIVE
from inference.model.checkpoints.config import ModelConfig, parse_config
from tests.support import fake_ranks
from tests.support.fake_ranks import NxDParallelState

WIDEST_TOP_K = 16_384
EXACT = 2**24
"""Integers up to this are exact in float32, in which the engines compute (nki, data types)."""
SMALLEST_WINDOW = 64
"""Bytes of a scatter's window: below it descriptors outweigh data (nki-dma-bandwidth-guide)."""
_LISTED = """
add sub rsub mul div neg reciprocal abs maximum minimum clamp eq ne gt ge lt le where
bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift __and__
__or__ __lshift__ __rshift__ logical_and logical_or logical_not _to_copy clone cat stack copy
full_like fill masked_fill constant_pad_nd repeat floor round sign ones_like zeros_like
exp log log1p expm1 rsqrt sqrt sigmoid tanh silu gelu sin cos pow erf amax amin sum mean
argmax cumsum any all max min prod _softmax _log_softmax mm bmm addmm baddbmm topk embedding
index_select gather index scatter index_put index_copy
"""
KNOWN = frozenset(_LISTED.split())
"""Operations that neuronx-cc lists (`neuronx-cc list-operators`), beside views."""
_WRITES = frozenset(("scatter", "index_put", "index_copy", "slice_scatter"))
_IGNORED = frozenset(("detach", "alias", "lift_fresh", "lift_fresh_copy", "_assert_async"))
_ARITHMETIC = frozenset(("add", "sub", "rsub", "mul", "sum", "cumsum", "neg"))
_WIDE = (torch.float64, torch.complex64, torch.complex128)


class CompilerRules(TorchDispatchMode):
    """Notes what would be refused of the operations that run within it, in `broken`. Operations on
    constants alone are the compiler's own and may be anything.

    native: the graph goes through TorchNeuron (trn2, trn3)
    states: the graph's caches
    """

    def __init__(self, native: bool = False, states: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.broken: set[str] = set()
        self.names: list[str] = []
        self._native, self._states = native, {storage(state) for state in states}
        self._constants: dict[int, Tensor] = {}  # an id is a tensor's own while it is held

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        name = name.removesuffix("_") if func._schema.is_mutable else name
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if all(id(tensor) in self._constants for tensor in inputs):
            self._constants |= {id(tensor): tensor for tensor in outputs}
        elif name not in _IGNORED:
            self.names.append(name)
            computed = [tensor for tensor in inputs if id(tensor) not in self._constants]
            places = {storage(tensor) for tensor in inputs}
            if name in _WRITES or not all(storage(tensor) in places for tensor in outputs):
                self._check(name, args, inputs, outputs, computed)
        return result

    def _check(
        self, name: str, args: Any, inputs: list[Tensor], outputs: list[Tensor], computed: Any
    ) -> None:
        found = [*refused(name, args, inputs, outputs), *wide(name, outputs, computed)]
        if self._native:
            found += refused_by_native(name, outputs[0], inputs[0], self._states)
        shown = ", ".join(map(_words, inputs))
        self.broken |= {f"{name}({shown}): {reason}" for reason in found}


def storage(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address


def _words(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def refused(name: str, args: Any, inputs: list[Tensor], outputs: list[Tensor]) -> Iterator[str]:
    """What is wrong with an operation, with where AWS says so."""
    source, out = inputs[0], outputs[0]
    floats = source.dtype.is_floating_point
    if name not in KNOWN:
        yield "not known"
    if name == "topk":
        axis = args[2] if len(args) > 2 else -1
        if source.dim() != 2 or axis % 2 != 1:
            yield "top-k of other than two axes, along the last, is a sort (NCC_EVRF029)"
        if source.shape[-1] > WIDEST_TOP_K:
            yield f"top-k wider than {WIDEST_TOP_K:,} (nki.isa, max8)"
        if not floats:
            yield "top-k of integers (EVRF013)"
    if name in ("max", "min", "mode", "median", "kthvalue", "aminmax") and len(outputs) > 1:
        yield "a reduction with two results (JAX NeuronX, known issues)"
    if name == "argmax" and (len(args) < 2 or args[1] % source.dim() != source.dim() - 1):
        yield "argmax along another axis than the last (JAX NeuronX, known issues)"
    if name == "argmax" and not floats:
        yield "argmax of integers (JAX NeuronX, known issues)"
    if name in ("mm", "bmm", "addmm") and not out.dtype.is_floating_point:
        yield "a product of integer matrices (EVRF035)"
    if name == "gather" and source.shape == inputs[1].shape:
        yield "a gather whose index has its source's shape (NxD Inference, model_base.py)"
    if name in ("scatter", "scatter_add", "scatter_reduce", "masked_scatter"):
        yield "writes single elements (nki-dma-bandwidth-guide)"
    if name in ("index_put", "index_copy", "index_add"):
        indexed = len(args[1]) if name == "index_put" else 1 + args[1]
        if math.prod(source.shape[indexed:]) * source.dtype.itemsize < SMALLEST_WINDOW:
            yield "writes small windows (nki-dma-bandwidth-guide)"
    if not all(math.isfinite(number) for number in args if isinstance(number, float)):
        yield "a constant that is not finite (nrt-troubleshoot, status 1003)"
    if out.device.type == "meta" or out.dtype.is_floating_point:
        return
    if name in ("bitwise_right_shift", "__rshift__") and bool((source < 0).any()):
        yield "an arithmetic shift of negative numbers (nki, ALU operations)"
    numbers = [tensor for tensor in (*inputs, *outputs) if tensor.numel()]
    if name in _ARITHMETIC and any(bool((n.long().abs() > EXACT).any()) for n in numbers):
        yield f"integers beyond {EXACT:,} (nki, data types)"


def wide(name: str, outputs: list[Tensor], computed: list[Tensor]) -> Iterator[str]:
    """Numbers of 64 bits, but for places that are cast at once (NCC_EVRF062, ESPP004)."""
    out = outputs[0]
    cast = name == "_to_copy" and out.dtype == torch.int32
    places = name in ("argmax", "topk")
    if any(tensor.dtype in _WIDE for tensor in outputs):
        yield "numbers of 64 bits"
    if any(tensor.dtype == torch.int64 for tensor in computed) and not cast:
        yield "computes with integers of 64 bits"
    if any(tensor.dtype == torch.int64 for tensor in outputs) and not places:
        yield "makes integers of 64 bits"


def refused_by_native(name: str, out: Tensor, source: Tensor, states: set[int]) -> Iterator[str]:
    """What TorchNeuron and torch-mlir make of an operation, where PyTorch/XLA has calls of its own.
    A cache that is reassigned is another tensor for TorchNeuron.
    """
    if name == "argmax":
        yield "values are reduced with their places (torch-mlir, DecomposeComplexOps)"
    if name == "index_copy":
        yield "a scatter of single numbers (torch-neuronx, decompositions)"
    if name in _WRITES and storage(source) in states and storage(out) != storage(source):
        yield "writes a copy of the whole cache"


PARALLEL = Sdk(
    None,
    None,
    None,
    None,
    fake_ranks.ColumnParallelLinear,
    fake_ranks.RowParallelLinear,
    fake_ranks.ParallelEmbedding,
    fake_ranks.gather_from_tensor_model_parallel_region_with_dim,
    fake_ranks.get_tensor_model_parallel_group,
)
"""NxD's layers: while one rank stands for all, a collective has its parts from itself."""


def run_checked(graph: nn.Module, inputs: Mapping[str, Tensor], native: bool) -> CompilerRules:
    """A call of a graph, checked. Its own buffers may be reassigned: it is used up."""
    rules = CompilerRules(native, list(graph.buffers()))
    with torch.no_grad(), rules:
        results = graph(**inputs)
    if any(leaf.dtype == torch.int64 for leaf in tree_leaves(results) if isinstance(leaf, Tensor)):
        rules.broken.add("returns integers of 64 bits")
    return rules


def check_call(
    config: ModelConfig, spec: CompileSpec, inputs: Mapping[str, Tensor], device: str = "meta"
) -> CompilerRules:
    """A call of one of the spec's graphs on one rank, checked. inputs: say which graph it is"""
    moved = {name: part.to(device) for name, part in inputs.items()}
    return run_checked(rank_graph(config, spec, device), moved, spec.target in NATIVE)


def rank_graph(config: ModelConfig, spec: CompileSpec, device: str = "meta") -> nn.Module:
    """One rank's module, without weights."""
    draft = None if spec.fused is None else parse_config(spec.fused.config)
    ranks = spec.tensor_parallel
    state = NxDParallelState(world_size=ranks, tensor_model_parallel_size=ranks)
    with torch.device(device), state:
        native = spec.target in NATIVE
        layers = _native_layers(ranks) if native else layers_of(PARALLEL, spec)
        module: Any = rank_module(spec, config, draft, layers, device).to(device)
    if native:
        module = InPlaceGraph(module.decoder, module.cache(), module.noise, spec.features)
    return module.requires_grad_(False).eval()


def _native_layers(ranks: int) -> Any:
    """Layers whose collectives have their parts from the one rank that is there."""
    among = Collectives(ranks, torch.clone, lambda x: torch.cat([x] * ranks))
    return rank_layers(ALONE if ranks == 1 else among)
