"""Stand-in for NxD Core's NxDModel: graphs run eagerly, and each rule is checked."""

from __future__ import annotations

import copy
import inspect
import json
import threading
import types
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.support.fake_ranks import assign, on_ranks

BOUNDARY = (torch.int32, torch.float32)


class Finite(TorchDispatchMode):
    """Refuses every NaN or infinity. tests/support/compiler_rules.py judges operations."""

    def __torch_dispatch__(self, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = out[0] if func is torch.ops.aten.topk.default else out
        if isinstance(made, Tensor) and made.is_floating_point() and not made.is_meta:
            empty = func is torch.ops.aten.empty.memory_format
            if not empty and not bool(torch.isfinite(made).all()):
                raise RuntimeError(
                    f"nrt_execute failed with status 1003: Numerical Error in {func}"
                )
        return out


@contextmanager
def no_in_place(module: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Yields the reassigned buffers; parameters and buffers must not be written to."""
    before = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    versions = {name: tensor._version for name, tensor in before.items()}
    changed: dict[str, Tensor] = {}
    yield changed
    for name, tensor in before.items():
        if tensor._version != versions[name]:
            raise RuntimeError(f"in-place write to {name}: state is updated by reassignment only")
    for name, now in {**dict(module.named_parameters()), **dict(module.named_buffers())}.items():
        if now is before.get(name):
            continue
        if name not in dict(module.named_buffers()) or name not in before:
            raise RuntimeError(f"{name} is not a buffer: only buffers can be state")
        if (now.shape, now.dtype) != (before[name].shape, before[name].dtype):
            raise RuntimeError(f"state {name} changed its shape or type")
        changed[name] = now


def check_signature(function: Any) -> inspect.Signature:
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise NotImplementedError("forward must name its parameters")
        if parameter.default is not inspect.Parameter.empty and parameter.default is not None:
            raise ValueError(f"{parameter.name}: only None may be a default")
    return signature


def check_boundary(tensors: Mapping[str, Any]) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name} is not a tensor")
        if tensor.dtype not in BOUNDARY or tensor.device.type != "cpu":
            raise TypeError(f"{name} is {tensor.dtype} on {tensor.device}, not {BOUNDARY} on a CPU")


def check_outputs(outputs: Any) -> None:
    """The host takes what a graph returns in these types, as one tensor or as several."""
    for tensor in tree_leaves(outputs):
        if tensor.dtype not in (*BOUNDARY, torch.bfloat16):
            raise TypeError(f"a graph returns {tensor.dtype}: int32 and float32 are read")


@dataclass
class Traced:
    """A graph: the module as it was when traced, the shapes it takes and the buffers it changes."""

    module: nn.Module
    route: str
    states: dict[str, tuple[torch.Size, torch.dtype]]
    parameters: list[str]


def route_of(inputs: Mapping[str, Tensor]) -> str:
    return "(" + ", ".join(f"{name}: {list(tensor.shape)}" for name, tensor in inputs.items()) + ")"


def program_of(module: Any) -> list[list[str]]:
    """What a module computes, whatever its numbers are."""
    return [[each.opcode, each.shape] for part in module.computations for each in part.instructions]


class NxDModel:
    neuron: Any

    def __init__(self, world_size: int, *, layout_transformer: Any = None) -> None:
        self.world_size, self.loaded_on_neuron = world_size, False
        self._graphs: dict[str, Traced] = {}
        self._weights: list[dict[str, Tensor]] | None = None
        self.states: list[dict[str, Tensor]] = []
        self._running = threading.Lock()
        self._layout = ""
        if layout_transformer is not None:
            self._layout = layout_transformer.construct_layout_transformer_object(world_size)

    def add(self, key: str, trace_artifacts: Any, compilation_artifacts: Any) -> NxDModel:
        neff = json.loads(compilation_artifacts.get_neff_bytes())
        traced: Traced = trace_artifacts.flattener
        if neff["program"] != program_of(trace_artifacts.hlo):
            raise RuntimeError(f"the NEFF of {key} was compiled from another graph")
        if trace_artifacts.weight_name_to_idx and neff["layout"] != self._layout:
            raise RuntimeError(f"{key} was compiled for weights in another layout")
        first = next(iter(self._graphs.values()), traced)
        assert traced.parameters == first.parameters, "a different signature"
        assert traced.states.keys() <= first.states.keys(), "states are those of the first graph"
        assert key not in self._graphs, f"{key} is added twice"
        self._graphs[key] = traced
        return self

    def _with(self, graphs: dict[str, Traced]) -> NxDModel:
        self._graphs = dict(graphs)
        return self

    def get_available_keys(self) -> set[str]:
        return set(self._graphs)

    def set_weights(self, sharded_checkpoint: Any) -> None:
        if self.loaded_on_neuron:
            raise ValueError("set_weights() was called when the model was already loaded on neuron")
        if len(sharded_checkpoint) != self.world_size:
            raise RuntimeError(f"{len(sharded_checkpoint)} shards for {self.world_size} ranks")
        for graph in self._graphs.values():
            wanted = {**dict(graph.module.named_parameters()), **dict(graph.module.named_buffers())}
            for shard in sharded_checkpoint:
                for name in wanted.keys() - graph.states.keys():
                    if name not in shard:
                        raise RuntimeError(f"weight {name} is not in the checkpoint")
                    ours, theirs = shard[name], wanted[name]
                    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
                        raise RuntimeError(
                            f"weight {name} is {ours.shape} {ours.dtype}, traced {theirs.shape}"
                        )
        self._weights = sharded_checkpoint

    def to_neuron(self) -> None:
        if not self.neuron.device:
            raise RuntimeError("nrt_init failed: no neuron device")
        if self.neuron.busy:
            raise RuntimeError("NRT:nrt_allocate_neuron_cores NeuronCore(s) not available")
        if self._weights is None:
            raise RuntimeError("to_neuron() before set_weights()")
        states = [state for graph in self._graphs.values() for state in graph.states.items()]
        shapes = dict(states)
        assert all(shapes[name] == state for name, state in states), "one shape in all graphs"
        self.states = [
            {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in shapes.items()}
            for _ in range(self.world_size)
        ]
        self._loaded = {
            (tag, rank): self._load(graph, rank)
            for tag, graph in self._graphs.items()
            for rank in range(self.world_size)
        }
        self.loaded_on_neuron = True
        self.neuron.loaded.append(self)

    def _load(self, graph: Traced, rank: int) -> nn.Module:
        module, weights = copy.deepcopy(graph.module), (self._weights or [])[rank]
        held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        assign(module, {name: weights[name] for name in held.keys() - graph.states.keys()})
        return module

    def read_from_neuron_buffer(self, buffer_key: str, rank: int) -> Tensor:
        assert self.loaded_on_neuron, "Model must be loaded on neuron before calling these methods"
        return self.states[rank][buffer_key].clone()

    def forward(self, *, model_name: str | None = None, **kwargs: Any) -> Any:
        if not self.loaded_on_neuron:
            raise RuntimeError("Model not initialized. Call set_weights() followed by to_neuron()")
        if not self._running.acquire(blocking=False):
            raise RuntimeError("a second call while one is in flight: the state is shared")
        try:
            check_boundary(kwargs)
            parameters = next(iter(self._graphs.values())).parameters
            route = route_of({name: kwargs[name] for name in parameters if name in kwargs})
            found = [tag for tag, graph in self._graphs.items() if graph.route == route]
            if not found or set(kwargs) - set(parameters):
                raise KeyError(route)
            if model_name is None or model_name not in found:
                raise AssertionError(f"route {found}, asked for {model_name}")
            self.neuron.calls.append(model_name)
            return self._execute(model_name, kwargs)
        finally:
            self._running.release()

    def _execute(self, tag: str, inputs: dict[str, Tensor]) -> Any:
        def main(rank: int) -> Any:
            module, states = self._loaded[tag, rank], self.states[rank]
            assign(module, {name: states[name] for name in self._graphs[tag].states})
            with torch.no_grad(), Finite(), no_in_place(module) as changed:
                out = module(**{name: tensor.clone() for name, tensor in inputs.items()})
            states.update(changed)
            return out

        return on_ranks(self.world_size, main)

    __call__ = forward

    def save(self, path_to_save: str, save_weights: bool = False) -> None:
        assert not save_weights, "weights are kept in files of their own"
        key = uuid.uuid4().hex  # the program itself is kept by the fake machine
        self.neuron.saved[key] = (self.world_size, self._graphs)
        Path(path_to_save).write_text(json.dumps({"fake": key}), encoding="utf-8")

    @classmethod
    def load(cls, path_to_model: str) -> Any:
        if cls.neuron.foreign_package:
            return types.SimpleNamespace(original_name="TorchScriptNxDModel")
        world_size, graphs = cls.neuron.saved[
            json.loads(Path(path_to_model).read_text(encoding="utf-8"))["fake"]
        ]
        return cls(world_size)._with(graphs)
