"""What torch_neuronx and its runtime do with a graph, on the CPU: trace it, and run it on ranks.

Ranks are threads that meet at every collective. While a graph is traced or run, torch.topk is what
torch_neuronx puts in its place.
"""

from __future__ import annotations

import copy
import enum
import hashlib
import threading
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from tests.support.fake_build import Lowering, Recorder
from tests.support.fake_nxd import no_in_place, program_of
from tests.support.fake_ranks import Group, assign, on_ranks

Shards = list[dict[str, Tensor]]


_here = threading.local()


def _parts(part: Tensor, size: int) -> list[Tensor]:
    """Every rank's part; while tracing, one rank stands for all."""
    parts = Group(size).exchange(part)
    assert len(parts) == size, f"a collective of {size} ranks among {len(parts)}"
    return parts


def all_reduce(
    kind: str,
    inputs: Any,
    scale: float = 1.0,
    groups: Sequence[Sequence[int]] = (),
    cctx: Any = None,
    pin_layout: bool = True,
) -> Any:
    """torch_xla's all_reduce, for sums."""
    if isinstance(inputs, list | tuple):
        return [all_reduce(kind, each, scale, groups) for each in inputs]
    parts = _parts(inputs, len(groups[0]))
    return torch.stack([part.float() for part in parts]).sum(0).to(inputs.dtype)


def all_gather(
    value: Tensor,
    dim: int = 0,
    groups: Sequence[Sequence[int]] = (),
    output: Any = None,
    pin_layout: bool = True,
    **_: Any,
) -> Tensor:
    """torch_xla's all_gather."""
    return torch.cat(_parts(value, len(groups[0])), dim)


_topk = torch.topk


def _listed_topk(
    scores: Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,  # noqa: A002
) -> Any:
    """In a graph, and not in the host's own work beside it, a list and no named tuple."""
    found = _topk(scores, k, dim, largest, sorted)
    return list(found) if getattr(_here, "within", False) else found


@contextmanager
def replaced_topk() -> Iterator[None]:
    """torch.topk as torch_neuronx has it, for the graph of this thread."""
    _here.within = True
    try:
        with (
            patch.object(torch, "topk", _listed_topk),
            patch.object(Tensor, "topk", _listed_topk),
            torch.no_grad(),
        ):
            yield
    finally:
        _here.within = False


@dataclass
class Graph:
    """A traced graph. inputs: names in order; exclude: places of those that it does not read."""

    module: nn.Module
    example: dict[str, Tensor]
    exclude: list[int]
    states: list[str]

    @property
    def inputs(self) -> list[str]:
        return [name for at, name in enumerate(self.example) if at not in self.exclude]


GRAPHS: dict[str, Graph] = {}
"""By their NEFFs."""

_LOWERING = Lowering()


class Kind(enum.IntEnum):
    USER_INPUT, INPUT_WEIGHT, INPUT_STATE = range(3)


class MetaTensor:
    """One tensor of a MetaNeff."""

    Type = Kind

    def __init__(
        self, kind: Kind = Kind.USER_INPUT, of: Tensor | None = None, key: str = ""
    ) -> None:
        self.type, self.checkpoint_key, self.user_input_key = kind, key.encode(), b""
        self.shape = [] if of is None else list(of.shape)
        self.data_type = None if of is None else of.dtype


class MetaNeff:
    """What a graph takes and returns, and which results are its next state."""

    def __init__(self) -> None:
        self.input_tensors: list[MetaTensor] = []
        self.output_tensors: list[MetaTensor] = []
        self.output_aliases_to: dict[int, int] = {}
        self.serialized_graph_def = b""

    def SerializeToString(self) -> bytes:
        return repr([(int(each.type), each.checkpoint_key) for each in self.input_tensors]).encode()


def neff_of(hlo: Any) -> str:
    """What the compiler makes of a module: a text, which is equal for equal computations."""
    return f"NEFF {hashlib.sha256(repr(program_of(hlo)).encode()).hexdigest()}"


class Reads(Recorder):
    """Notes the inputs that are read, too. The tracer takes the others out of the graph."""

    def __init__(self, module: nn.Module, inputs: dict[str, Tensor]) -> None:
        super().__init__(module)
        self._names |= {id(tensor): name for name, tensor in inputs.items()}


class Flattener:
    """Inputs in the order of the graph, without those that it does not read."""

    def __init__(self, layout: Any, exclude: Any = None) -> None:
        self.layout, self.exclude = layout, exclude

    def __call__(self, inputs: Any) -> list[Any]:
        return [inputs[at] for at in self.layout if at not in (self.exclude or [])]


class Packer:
    """A graph's results as the module returned them: here always one tensor."""

    def __init__(self, layout: Any, identifiers: Any, constants: Any) -> None:
        self.layout, self.identifiers, self.constants = layout, identifiers, constants

    def __call__(self, outputs: Any) -> Any:
        return outputs[0]


def generate_hlo(
    func: nn.Module,
    example_inputs: dict[str, Tensor],
    input_output_aliases: Any = None,
    inline_weights_to_neff: bool = True,
    cpu_backend: bool = False,
    treat_inputs_as_kwargs: bool = False,
    **_: Any,
) -> Any:
    """Trace a module, as torch_neuronx.xla_impl.trace does for ModelBuilder."""
    assert treat_inputs_as_kwargs, "inputs are given by name"
    assert cpu_backend, "traced without a device"
    assert not inline_weights_to_neff, "the weights are kept in files of their own"
    module = copy.deepcopy(func)
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for tensor in held.values():  # weights come later; memory may hold what is no number
        tensor.data.zero_()
    recorder = Reads(module, example_inputs)
    with replaced_topk(), recorder, no_in_place(module) as changed:
        out = module(**example_inputs)
    states, kept = list(changed), func.state_dict().keys()
    weights = [name for name in held if name in kept and name not in states]
    constants = held.keys() - set(states) - kept
    assert not constants, f"read by the graph and in no checkpoint: {sorted(constants)}"
    read = {**example_inputs, **held}
    parameters = [("parameter", f"{read[name].dtype}{read[name].shape}") for name in recorder.read]
    hlo, meta = _LOWERING.module([*parameters, *recorder.operations]), MetaNeff()
    unread = [at for at, name in enumerate(example_inputs) if name not in recorder.read]
    graph = Graph(copy.deepcopy(func), dict(example_inputs), unread, states)
    GRAPHS[neff_of(hlo)] = graph
    meta.input_tensors = [
        *(MetaTensor(Kind.USER_INPUT, example_inputs[name]) for name in graph.inputs),
        *(MetaTensor(Kind.INPUT_STATE, held[name], name) for name in states),
        *(MetaTensor(Kind.INPUT_WEIGHT, held[name], name) for name in weights),
    ]
    meta.output_tensors = [MetaTensor(of=out), *(MetaTensor(of=held[name]) for name in states)]
    meta.output_aliases_to = {1 + at: at for at in range(len(states))}
    return types.SimpleNamespace(
        hlo_module=hlo,
        metaneff=meta,
        flattener=Flattener(tuple(range(len(example_inputs))), graph.exclude or None),
        packer=Packer(0, ["result"], {}),
        weight_name_to_idx={name: at for at, name in enumerate(weights)},
    )


def run(graph: Graph, states: Shards, weights: Shards, inputs: Sequence[Tensor]) -> Tensor:
    """Run a graph on every rank, and write the new states into `states`."""
    given = graph.example | dict(zip(graph.inputs, inputs, strict=True))
    for name, tensor in given.items():
        wanted = graph.example[name]
        assert (tensor.shape, tensor.dtype) == (wanted.shape, wanted.dtype), name

    def main(rank: int) -> Tensor:
        module = copy.deepcopy(graph.module)
        values = dict[str, Tensor]()
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            values[name] = (states if name in graph.states else weights)[rank][name]
            assert (values[name].shape, values[name].dtype) == (tensor.shape, tensor.dtype), name
        assign(module, values)
        _here.within = True
        out: Tensor = module(**given)
        states[rank] |= {name: module.get_buffer(name) for name in graph.states}
        return out

    result: Tensor
    with replaced_topk():
        result = on_ranks(len(weights), main)
    return result
