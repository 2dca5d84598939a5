"""Stand-in for the functions and records with which NxD Core traces and compiles graph by graph.

Programs are protobuf messages with the fields of XLA's HloModuleProto that the build reads. A NEFF
is a text that says which program it was compiled from, for which layout of the weights.
"""

from __future__ import annotations

import copy
import hashlib
import json
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tests.support.fake_nxd import (
    Finite,
    Traced,
    check_boundary,
    check_outputs,
    check_signature,
    no_in_place,
    program_of,
    route_of,
)
from tests.support.fake_ranks import current_group

_Field = descriptor_pb2.FieldDescriptorProto
_FIELDS = {
    "HloInstructionProto": "name opcode shape metadata id:int operand_ids:int* "
    "control_predecessor_ids:int* called_computation_ids:int*",
    "HloComputationProto": "name instructions:HloInstructionProto* id:int root_id:int",
    "HloModuleProto": "name entry_computation_name entry_computation_id:int "
    "computations:HloComputationProto* id:int frontend_attributes:FrontendAttributes",
    "FrontendAttributes": "map:FrontendAttributes.MapEntry*",
    "FrontendAttributes.MapEntry": "key value",
}
"""Fields of each message, as NAME:KIND. Strings have no kind; a star repeats the field."""


def _module_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="fake_hlo.proto", package="fake", syntax="proto3"
    )
    messages: dict[str, Any] = {}
    for name, fields in _FIELDS.items():
        owner, _, leaf = name.rpartition(".")
        holder = messages[owner].nested_type if owner else file.message_type
        messages[name] = message = holder.add(name=leaf)
        for number, field in enumerate(fields.split(), 1):
            named, _, kind = field.rstrip("*").partition(":")
            scalar = {"": _Field.TYPE_STRING, "int": _Field.TYPE_INT64}.get(kind)
            message.field.add(
                name=named,
                number=number,
                label=_Field.LABEL_REPEATED if field.endswith("*") else _Field.LABEL_OPTIONAL,
                type=_Field.TYPE_MESSAGE if scalar is None else scalar,
                type_name=f".fake.{kind}" if scalar is None else None,
            )
    messages["FrontendAttributes.MapEntry"].options.map_entry = True
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fake.HloModuleProto"))


HloModuleProto = _module_class()


class Lowering:
    """Makes modules as a tracer does: numbers go on from one module to the next."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def module(self, operations: list[tuple[str, str]]) -> Any:
        """A module of one computation.

        operations: opcode and shape of each, in their order
        """
        number = next(self._numbers)
        module = HloModuleProto(id=number, name=f"SyncTensorsGraph.{number}")
        number = next(self._numbers)
        computation = module.computations.add(id=number, name=f"entry.{number}")
        module.entry_computation_id, module.entry_computation_name = number, computation.name
        for opcode, shape in operations:
            append(computation, opcode, shape, next(self._numbers))
        return module


def append(computation: Any, opcode: str, shape: str, number: int) -> None:
    """Add an instruction that takes the one before it."""
    computation.instructions.add(
        id=number,
        name=f"{opcode}.{number}",
        opcode=opcode,
        shape=shape,
        metadata=f"traced as number {number}",
        operand_ids=[before.id for before in computation.instructions[-1:]],
    )
    computation.root_id = number


LAYOUT = "weight-layout"
MARK = "transposable_weight_idx"


class Recorder(Finite):
    """Notes the operations and which parameters they read."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._names = {id(each): name for name, each in module.named_parameters()}
        self.operations: list[tuple[str, str]] = []
        self.read: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in tree_leaves((args, kwargs or {})):
            if id(leaf) in self._names:
                self.read.setdefault(self._names[id(leaf)], len(self.read))
        out = super().__torch_dispatch__(func, types_, args, kwargs)
        shapes = [shape_of(each) for each in tree_leaves(out) if isinstance(each, Tensor)]
        self.operations.append((str(func), " ".join(shapes)))
        return out


def shape_of(tensor: Tensor) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}"


@dataclass
class CompilationArtifacts:
    neff_filepath: str

    def get_neff_bytes(self) -> bytes:
        return Path(self.neff_filepath).read_bytes()


@dataclass
class WLOArtifacts(CompilationArtifacts):
    wrapped_neff_hlo_filepath: str | None = None


@dataclass
class LayoutTransformerArtifacts:
    hlo_filepath: str
    neff_filepath: str
    metaneff_filepath: str

    def __post_init__(self) -> None:
        assert all(Path(path).is_file() for path in vars(self).values()), self

    def construct_layout_transformer_object(self, local_ranks_size: int) -> str:
        layout: str = json.loads(Path(self.neff_filepath).read_bytes())["layout"]
        return layout


class FakeFunctions:
    """neuronx_distributed.trace.functions and hlo_utils on one fake machine."""

    def __init__(self, neuron: Any) -> None:
        self._neuron, self._lowering = neuron, Lowering()

    def trace(self, model: Any, *, kwargs: Any = None) -> Any:
        if not kwargs:
            raise ValueError("At least one input tensor must be provided via args or kwargs")
        for layer in model.modules():
            assert getattr(layer, "group", current_group()) is current_group(), (
                "a layer belongs to the parallel state in which it was made"
            )
        signature = check_signature(model.forward)
        check_boundary(kwargs)
        unknown = set(kwargs) - set(signature.parameters)
        if unknown:
            raise ValueError(f"Found unexpected keys in kwargs: {unknown}")
        ordered = {name: kwargs[name] for name in signature.parameters if name in kwargs}
        module = copy.deepcopy(model)
        for parameter in module.parameters():  # the weights' values must not matter
            parameter.data = torch.zeros_like(parameter)
        with Recorder(module) as recorder, no_in_place(module) as changed:
            out = module(**ordered)
        check_outputs(out)
        states = {name: (tensor.shape, tensor.dtype) for name, tensor in changed.items()}
        parameters = list(signature.parameters)
        traced = Traced(copy.deepcopy(model), route_of(ordered), states, parameters)
        inputs = [("parameter", str(list(tensor.shape))) for tensor in ordered.values()]
        weights = dict(module.named_parameters())
        inputs += [("parameter", shape_of(weights[name])) for name in recorder.read]
        hlo = self._lowering.module([*inputs, *recorder.operations])
        return SimpleNamespace(
            hlo=hlo,
            metaneff=SimpleNamespace(SerializeToString=lambda: b"metaneff"),
            flattener=traced,
            weight_name_to_idx=recorder.read,
            weight_names_to_skip=set(),
        )

    def compile(self, hlo_module: Any, metaneff: Any, **compiler: Any) -> CompilationArtifacts:
        assert not hlo_module.frontend_attributes.map, "a marked graph is compiled by compile_wlo"
        folder = self._compile(hlo_module, layout_of(hlo_module), **compiler)
        return CompilationArtifacts(str(folder / "graph.neff"))

    def compile_wlo(self, hlo_module: Any, metaneff: Any, **compiler: Any) -> WLOArtifacts:
        assert MARK in hlo_module.frontend_attributes.map, "weights have to be marked first"
        layout = hashlib.sha256(json.dumps(program_of(hlo_module)).encode()).hexdigest()[:8]
        if not self._neuron.layout_changes:
            folder = self._compile(hlo_module, "", **compiler)
            return WLOArtifacts(str(folder / "graph.neff"), None)
        folder = self._compile(hlo_module, layout, **compiler)
        (folder / "wrapped_neff.hlo").write_text(layout)
        return WLOArtifacts(str(folder / "graph.neff"), str(folder / "wrapped_neff.hlo"))

    def compile_layout_transformer(
        self,
        wlo_artifacts: Any,
        priority_model_weight_name_to_idx: Any,
        compiler_workdir: Any = None,
        logical_nc_config: int = 1,
    ) -> LayoutTransformerArtifacts | None:
        if not priority_model_weight_name_to_idx:
            raise ValueError("Required compile_layout_transformer arguments missing")
        if wlo_artifacts.wrapped_neff_hlo_filepath is None:
            return None
        self._neuron.compiled.append("layout_opt")
        folder = Path(compiler_workdir) / "layout_opt" / str(time.time_ns())
        folder.mkdir(parents=True)
        layout = Path(wlo_artifacts.wrapped_neff_hlo_filepath).read_text()
        (folder / "graph.neff").write_text(json.dumps({"layout": layout}))
        (folder / "graph.hlo").write_text(layout)
        (folder / "metaneff.pb").write_bytes(b"metaneff")
        return LayoutTransformerArtifacts(
            *(str(folder / name) for name in ("graph.hlo", "graph.neff", "metaneff.pb"))
        )

    def mark_weights_for_wlo(
        self, trace_artifacts: Any, weights_to_skip_layout_optimization: Any = None
    ) -> None:
        assert not trace_artifacts.hlo.frontend_attributes.map, "marked twice"
        marked = type(trace_artifacts.hlo)()
        marked.CopyFrom(trace_artifacts.hlo)
        marked.frontend_attributes.map[MARK] = ",".join(
            map(str, sorted(trace_artifacts.weight_name_to_idx.values()))
        )
        trace_artifacts.hlo = marked

    def apply_layout_transformation(
        self,
        trace_artifacts: Any,
        priority_model_trace_artifacts: Any,
        wlo_artifacts: Any,
        key: Any = None,
    ) -> None:
        if not trace_artifacts.weight_name_to_idx:
            raise RuntimeError(f"{key}: Weight name to index mapping is empty")
        assert not layout_of(trace_artifacts.hlo), "transformed twice"
        if wlo_artifacts.wrapped_neff_hlo_filepath is None:
            return
        layout = Path(wlo_artifacts.wrapped_neff_hlo_filepath).read_text()
        changed = type(trace_artifacts.hlo)()
        changed.CopyFrom(trace_artifacts.hlo)
        entry = changed.computations[-1]
        append(entry, LAYOUT, layout, entry.instructions[-1].id + 1)
        trace_artifacts.hlo = changed

    def _compile(
        self, hlo: Any, layout: str, *, compiler_workdir: str, compiler_args: str, key: str
    ) -> Path:
        """Compile as neuronx-cc does: in a directory of its own, with a log."""
        folder = Path(compiler_workdir) / key / str(time.time_ns())
        folder.mkdir(parents=True)
        (folder / "log-neuron-cc.txt").write_text(f"compiled {key} with {compiler_args}\n")
        try:
            self._neuron.check_platform()
            if self._neuron.broken_at == key:
                raise KeyboardInterrupt
            if self._neuron.compiler_dies:
                self._neuron.compiler_dies -= 1
                raise RuntimeError("neuronx-cc failed with 70")
            if self._neuron.compiler_fails:
                raise RuntimeError(self._neuron.compiler_fails)
        except RuntimeError as error:
            raise RuntimeError(f"Compilation failed for {key}") from error
        self._neuron.compiled.append(key)
        neff = {"program": program_of(hlo), "layout": layout}
        (folder / "graph.neff").write_text(json.dumps(neff))
        return folder


def layout_of(hlo: Any) -> str:
    return "".join(
        each.shape for each in hlo.computations[-1].instructions if each.opcode == LAYOUT
    )
