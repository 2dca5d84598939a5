"""Stand-ins for the packages that neuronx-distributed imports and that are not to be had as source.

Whatever it only imports is an empty name here. What it calls is in tests/nxd/graphs.py. `install`
makes the real neuronx_distributed of a checkout importable over them.
"""

from __future__ import annotations

import contextlib
import importlib
import shlex
import subprocess
import sys
import types
from collections.abc import MutableSequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from tests.nxd import graphs
from tests.support import fake_build

HERE = Path(__file__).parent
CLOSED = ("torch_xla", "torch_neuronx", "libneuronxla", "neuronxcc", "nki", "nkilib")
UNUSED = (
    "tenacity",
    "pgzip",
    "transformers.utils.fx",  # of transformers 4
    "neuronx_distributed.pipeline",
    "neuronx_distributed.trainer",
    "neuronx_distributed.lightning",
    "neuronx_distributed.modules.moe",
)
"""Parts that the builder imports and does not use."""

FLAGS: list[str] = []
"""Flags of every call of the compiler."""


def _compile(module_bytes: bytes, compiler_flags: str, **_: Any) -> bytes:
    """libneuronxla's call of neuronx-cc, which keeps its log where it is told to."""
    FLAGS.append(compiler_flags)
    (log,) = [word for word in shlex.split(compiler_flags) if word.startswith("--logfile=")]
    Path(log.removeprefix("--logfile=")).write_text(f"compiled with {compiler_flags}\n")
    return graphs.neff_of(fake_build.HloModuleProto.FromString(module_bytes)).encode()


def _compile_priority(
    module_bytes: bytes, compiler_flags: str, **named: Any
) -> tuple[bytes, bytes]:
    """The same for the graph that the weights are laid out for. They are best as they are."""
    marks = fake_build.HloModuleProto.FromString(module_bytes).frontend_attributes.map
    assert marks["transposable_weight_idx"], "weights have to be marked first"
    assert "--enable-internal-neff-wrapper" in shlex.split(compiler_flags)
    return _compile(module_bytes, compiler_flags, **named), b""


def _platform(arguments: Any = None) -> str:
    return "trn1"


CALLED: dict[str, Any] = {
    "torch_neuronx.__version__": "2.9.0.2.15.32035",
    "torch_neuronx.xla_impl.trace.generate_hlo": graphs.generate_hlo,
    "torch_neuronx.xla_impl.trace.get_torch_dtype": lambda dtype: dtype,
    "torch_neuronx.xla_impl.structure.Flattener": graphs.Flattener,
    "torch_neuronx.xla_impl.structure.Packer": graphs.Packer,
    "torch_neuronx.proto.metaneff_pb2.MetaTensor": graphs.MetaTensor,
    "torch_neuronx.proto.metaneff_pb2.MetaNeff": graphs.MetaNeff,
    "torch_neuronx.pyhlo.hlo_pb2.HloModuleProto": fake_build.HloModuleProto,
    "torch_neuronx.utils.utils.get_platform_target": _platform,
    "torch_neuronx.utils.get_platform_target": _platform,
    "torch_neuronx.utils.utils.SUPPORTED_TYPES": ["trn1", "trn2"],
    "torch_neuronx.contexts.disable_nrt_load": contextlib.nullcontext,
    "libneuronxla.neuron_xla_compile": _compile,
    "libneuronxla.neuron_xla_wlo_compile": _compile_priority,
    "torch_xla.__version__": "2.9.0",
    "torch_xla.core.xla_model.all_reduce": graphs.all_reduce,
    "torch_xla.core.xla_model.all_gather": graphs.all_gather,
    "torch_xla.core.xla_model.REDUCE_SUM": "sum",
    "torch_xla.core.xla_model.REDUCE_MAX": "max",
    "torch_xla.core.xla_model.REDUCE_MIN": "min",
}


class Closed(types.ModuleType):
    """A module that has every name that is asked for."""

    __path__: MutableSequence[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        full = f"{self.__name__}.{name}"
        if full in CALLED:
            return CALLED[full]
        if name.startswith("__"):
            raise AttributeError(name)
        if name.endswith("_pb2") or any(called.startswith(f"{full}.") for called in CALLED):
            return importlib.import_module(full)
        value = _empty_type(name) if name[0].isupper() else _passing
        setattr(self, name, value)
        return value


def _empty_type(name: str) -> type:
    def attribute(self: Any, asked: str) -> Any:
        if asked.startswith("__"):
            raise AttributeError(asked)
        return MagicMock()

    members = {
        "__init__": lambda self, *_, **__: None,
        "__class_getitem__": classmethod(lambda cls, _: cls),
        "__getattr__": attribute,
    }
    return type(name, (), members)


def _passing(*arguments: Any, **named: Any) -> Any:
    """A decorator, with arguments or without, that changes nothing."""
    if len(arguments) == 1 and callable(arguments[0]) and not named:
        return arguments[0]
    return lambda function=None, *_, **__: function


class Finder(MetaPathFinder, Loader):
    """Finds the modules that are stood in for."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name.split(".")[0] in CLOSED or name.startswith(UNUSED):
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> Closed:
        return Closed(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        for name, value in CALLED.items():
            owner, _, leaf = name.rpartition(".")
            if owner == module.__name__:
                setattr(module, leaf, value)


def build_runtime(folder: Path) -> Path:
    """Compile the TorchScript classes of the runtime."""
    root, library = Path(torch.__file__).parent, folder / "runtime.so"
    include = [f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}"]
    linked = [f"-L{root / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{root / 'lib'}"]
    how = ["-O0", "-w", "-shared", "-fPIC", "-std=c++17"]
    source = HERE / "runtime.cpp"
    subprocess.run(["g++", *how, *include, str(source), *linked, "-o", str(library)], check=True)
    return library


class Device:
    """The runtime: weights of each graph, and one set of states for all graphs of a package."""

    def __init__(self) -> None:
        self.states: graphs.Shards = []
        self.weights: dict[str, graphs.Shards] = {}

    def zeros(self, initializer: Any) -> graphs.Shards:
        """What NxD's StateInitializer.forward() returns. States are on the CPU, and kept."""
        self.states = [
            {
                name: torch.zeros(shape, dtype=initializer.dtypes[name])
                for name, shape in initializer.shapes.items()
            }
            for _ in range(initializer.local_ranks_size)
        ]
        return [dict(rank) for rank in self.states]

    def initialize(self, graph: str, states: Any, weights: Any, start: int) -> None:
        self.weights[graph] = [dict(rank) for rank in weights]

    def run(self, graph: str, inputs: list[Tensor]) -> list[Tensor]:
        return [graphs.run(graphs.GRAPHS[graph], self.states, self.weights[graph], inputs)]


def install(patch: pytest.MonkeyPatch, checkout: Path, folder: Path) -> Device:
    """Make the checkout's neuronx_distributed importable, with a device to run on."""
    device = Device()
    operators = torch.library.Library("outrider_nxd", "DEF")
    operators.define("run(str graph, Tensor[] inputs) -> Tensor[]")
    operators.define(
        "initialize(str graph, Dict(str, Tensor)[] states, Dict(str, Tensor)[] weights, int start)"
        " -> ()"
    )
    operators.impl("run", device.run, "CompositeExplicitAutograd")
    operators.impl("initialize", device.initialize, "CompositeExplicitAutograd")
    globals()["_operators"] = operators  # a model's thread may call them after the last test
    torch.ops.load_library(str(build_runtime(folder)))
    patch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    patch.syspath_prepend(str(checkout / "src"))
    return device
