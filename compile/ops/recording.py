"""Records the operations of a graph by one call on the meta device: real sizes, no data.

What is recorded is what a tracing compiler is given: torch's core operations, each with the types
and shapes that go in and come out, and the source line that asked for it. `record_call` records a
call of one rank's graph, which is laid out as the builders do.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from compile.parallel import layers_of, rank_module
from compile.spec import CompileSpec
from inference.artifact import NATIVE
from inference.backends.neuron_sdk import Sdk
from inference.model.config import ModelConfig, parse_config
from inference.model.decoder import Layers
from inference.model.torch_neuron_graph import ALONE, Collectives, rank_layers

ROOT = Path(__file__).parents[2]
_OWN = Path(__file__).parent
WRITES = frozenset(("scatter", "index_put", "index_copy", "slice_scatter"))
"""Operations whose result is their first argument with some of it written anew."""
_IGNORED = frozenset(("detach", "alias", "lift_fresh", "lift_fresh_copy", "_assert_async"))


class Value(NamedTuple):
    """A tensor of the graph."""

    number: int  # counts up; no two tensors share one
    storage: int  # tensors with one storage are views of each other
    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: str  # weight, state (written or not), input, constant or computed
    name: str  # of a weight, a state or an input; empty for others

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


@dataclass(frozen=True)
class Op:
    """An operation. Arguments are as given, with a Value in place of each tensor."""

    name: str  # such as topk, without namespace and overload
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    where: str  # file:line of the innermost line of this project
    trail: tuple[str, ...]  # file:Class.function of all lines of this project, innermost first

    @property
    def view(self) -> bool:
        """Whether it moves nothing: its results lie where its first argument lies."""
        if self.name in WRITES:  # also in place
            return False
        shared = {value.storage for value in self.inputs}
        return bool(self.outputs) and all(out.storage in shared for out in self.outputs)

    @property
    def constant(self) -> bool:
        """Whether a compiler computes it: nothing that goes in depends on a call or a weight."""
        return all(value.kind == "constant" for value in self.inputs)

    def __str__(self) -> str:
        takes, makes = (", ".join(map(str, values)) for values in (self.inputs, self.outputs))
        return f"{self.name}({takes}) -> {makes}"


@dataclass(frozen=True)
class Recording:
    """The operations of one call of a graph, in order."""

    ops: tuple[Op, ...]
    results: tuple[Value, ...]  # what the call returns, and states that it reassigns

    def users(self) -> Mapping[int, Sequence[Op]]:
        """The operations that read each value, by its number."""
        found: defaultdict[int, list[Op]] = defaultdict(list)
        for op in self.ops:
            for value in op.inputs:
                found[value.number].append(op)
        return found


def record(graph: nn.Module, inputs: Mapping[str, Tensor]) -> Recording:
    """The operations of `graph(**inputs)`. The graph and its inputs lie on the meta device.

    The graph's own buffers may be reassigned: it is used up.
    """
    recorder = _OpRecorder()
    for name, parameter in graph.named_parameters():
        recorder.name(parameter, "weight", name)
    state = dict(graph.named_buffers())
    for name, buffer in state.items():
        kept = name.rsplit(".", 1)[-1] in ("cos", "sin")
        recorder.name(buffer, "weight" if kept else "state", name)
    for name, tensor in inputs.items():
        recorder.name(tensor, "input", name)
    with torch.no_grad(), recorder:
        returned = graph(**inputs)
    changed = [b for name, b in graph.named_buffers() if b is not state[name]]
    leaves = [leaf for leaf in tree_flatten((returned, changed))[0] if isinstance(leaf, Tensor)]
    return Recording(tuple(recorder.ops), tuple(recorder.value(leaf) for leaf in leaves))


_Place = tuple[int, tuple[int, ...], tuple[int, ...], int]


class _OpRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[Op] = []
        self._values: dict[_Place, Value] = {}
        self._storages: dict[int, int] = {}
        self._held: list[Tensor] = []  # a storage's address is its own while it is held
        self._kinds: dict[int, tuple[str, str]] = {}

    def name(self, tensor: Tensor, kind: str, name: str) -> None:
        """Says what a tensor is that the graph does not compute."""
        self._kinds[self._storage(tensor)] = (kind, name)

    def value(self, tensor: Tensor) -> Value:
        kind, name = self._kinds.get(self._storage(tensor), ("constant", ""))
        return self._made(tensor, kind, name)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if func._schema.is_mutable:  # an operation in place has the name of the other
            name = name.removesuffix("_")
        result = func(*args, **kwargs)
        if name not in _IGNORED:
            self._add(name, args, kwargs, result)
        return result

    def _add(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        given = tree_map(self._if_tensor, (tuple(args), dict(kwargs)))
        leaves, _ = tree_flatten(given, is_leaf=lambda leaf: isinstance(leaf, Value))
        inputs = tuple(leaf for leaf in leaves if isinstance(leaf, Value))
        kind = "constant" if all(value.kind == "constant" for value in inputs) else "computed"
        if name in WRITES and inputs[0].kind == "state":
            kind = "state"
        outputs = []
        for tensor in (leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, Tensor)):
            source = self._kinds.get(self._storage(tensor))
            outputs.append(self._made(tensor, *(source or (kind, ""))))
        where, trail = _asked_by()
        self.ops.append(Op(name, given[0], given[1], inputs, tuple(outputs), where, trail))

    def _if_tensor(self, leaf: Any) -> Any:
        return self.value(leaf) if isinstance(leaf, Tensor) else leaf

    def _made(self, tensor: Tensor, kind: str, name: str) -> Value:
        """The value that a tensor is. One that lies where an earlier one lies is the same."""
        storage, shape = self._storage(tensor), tuple(tensor.shape)
        place = (storage, shape, tensor.stride(), int(tensor.storage_offset()))
        if place not in self._values:
            number = len(self._values)
            self._values[place] = Value(number, storage, shape, tensor.dtype, kind, name)
            self._kinds.setdefault(storage, (kind, name))
        return self._values[place]

    def _storage(self, tensor: Tensor) -> int:
        address = tensor.untyped_storage()._cdata
        if address not in self._storages:
            self._storages[address] = len(self._storages)
            self._held.append(tensor)
        return self._storages[address]


@cache
def _file_of(path: str) -> str | None:
    """The name of a file of this project, from its root; None for other files and for ours."""
    file = Path(path)
    if ROOT not in file.parents or file.parent == _OWN or ".venv" in file.parts:
        return None
    return file.relative_to(ROOT).as_posix()


def _asked_by() -> tuple[str, tuple[str, ...]]:
    """The line of this project that asked for an operation, and the functions around it."""
    where, trail = "", []
    frame: FrameType | None = sys._getframe(3)
    while frame is not None:
        code = frame.f_code
        file = _file_of(code.co_filename)
        if file is not None and code.co_name != "__torch_function__":
            where = where or f"{file}:{frame.f_lineno}"
            owner = frame.f_locals.get("self") if code.co_name == "forward" else None
            prefix = "" if owner is None else f"{type(owner).__name__}."
            trail.append(f"{file}:{prefix}{code.co_name}")
        frame = frame.f_back
    return where, tuple(trail)


def record_call(
    config: ModelConfig,
    spec: CompileSpec,
    inputs: Mapping[str, Tensor],
    draft: ModelConfig | None = None,
) -> Recording:
    """The operations of a call of the spec's graphs on one rank.

    inputs: of the call, which say what graph it is
    draft: the model that drafts in the graph (default: that of the spec, where it has one)
    """
    if draft is None and spec.fused is not None:
        draft = parse_config(spec.fused.config)
    module = meta_module(config, spec, draft)
    return record(module, {name: part.to("meta") for name, part in inputs.items()})


def meta_module(
    config: ModelConfig, spec: CompileSpec, draft: ModelConfig | None = None
) -> nn.Module:
    """One rank's module on the meta device."""
    ranks = spec.tensor_parallel
    with torch.device("meta"):
        native = spec.target in NATIVE
        layers = _native_layers(ranks) if native else layers_of(_meta_sdk(ranks), spec)
        return rank_module(spec, config, draft, layers, "meta").to("meta")


def _native_layers(ranks: int) -> Layers:
    named = torch.ops.outrider
    among = Collectives(ranks, named.all_reduce, lambda x: named.all_gather(x, ranks, 0))
    return rank_layers(ALONE if ranks == 1 else among)


def _all_gather(x: Tensor, ranks: int, axis: int = -1) -> Tensor:
    shape = list(x.shape)
    shape[axis] *= ranks
    return x.new_empty(shape)


def _named() -> Any:
    """The collectives as operations of torch, on the meta device."""
    library: Any = torch.library.Library("outrider", "DEF")  # type: ignore[no-untyped-call]
    library.define("all_reduce(Tensor x) -> Tensor")
    library.define("all_gather(Tensor x, int ranks, int axis=-1) -> Tensor")
    library.impl("all_reduce", torch.empty_like, "Meta")
    library.impl("all_gather", _all_gather, "Meta")
    return library


_LIBRARY = _named()  # its operations are there while it is held


def _meta_sdk(ranks: int) -> Sdk:
    """One rank's share of each parallel layer, with collectives in the places where NxD has them:
    sums in the type that is asked for, and gathers along one axis.
    """

    def gathered(x: Tensor, axis: int = -1, _: object = None) -> Tensor:
        return torch.ops.outrider.all_gather(x, ranks, axis) if ranks > 1 else x

    def added(x: Tensor, _: object = None) -> Tensor:
        return torch.ops.outrider.all_reduce(x) if ranks > 1 else x

    class Column(nn.Linear):
        def __init__(self, inputs: int, outputs: int, bias: bool, **_: Any) -> None:
            super().__init__(inputs, outputs // ranks, bias)

    class Row(nn.Linear):
        def __init__(
            self, inputs: int, outputs: int, bias: bool, reduce_dtype: torch.dtype, **_: Any
        ) -> None:
            super().__init__(inputs // ranks, outputs, bias)
            self._summed = reduce_dtype

        def forward(self, x: Tensor) -> Tensor:
            part = nn.functional.linear(x, self.weight)
            if ranks > 1:
                part = added(part.to(self._summed)).to(x.dtype)
            return part if self.bias is None else part + self.bias

    class Embedding(nn.Embedding):
        def __init__(self, ids: int, size: int, **_: Any) -> None:
            super().__init__(ids, size // ranks)

        def forward(self, ids: Tensor) -> Tensor:
            return gathered(super().forward(ids))

    return Sdk(None, None, None, None, Column, Row, Embedding, gathered, lambda: None)
