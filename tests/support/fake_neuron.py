"""A strict stand-in for AWS's Neuron packages: it runs graphs eagerly on the CPU and fails where
the real ones would, or worse.

Rules enforced: what AWS's documentation and NxD's sources say. `Neuron.install` puts
the modules in place for one test, with package metadata, a device or none. Every fault of our code
is an exception here, never a warning.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support import fake_build_units, fake_ranks
from tests.support.fake_nxd import NxDModel

VERSIONS = {
    "torch-neuronx": "2.9.0.2.15.32035",
    "neuronx-cc": "2.26.6360.0",
    "neuronx-distributed": "0.19.28492",
    "transformers": "4.57.6",
}


def lay_out(
    patch: pytest.MonkeyPatch, folder: Path, versions: Mapping[str, str], *, device: bool
) -> None:
    """Make this machine one with these packages, with a device or none, and no variables."""
    from inference.backends.neuron import sdk as neuron_sdk

    folder.mkdir(parents=True, exist_ok=True)
    for name, number in versions.items():
        info = folder / f"{name.replace('-', '_')}-{number}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n", encoding="utf-8"
        )
    patch.syspath_prepend(str(folder))
    if device:
        (folder / "neuron0").touch()
    patch.setattr(neuron_sdk, "DEVICE", folder / "neuron0")
    patch.setattr(neuron_sdk, "PRODUCT", folder / "product_name")
    ours = ("NEURON_PLATFORM_TARGET_OVERRIDE", "NEURON_RT_NUM_CORES")
    for name in ours:  # set by the code under test, and taken back with the patch
        patch.setenv(name, "")
    for name in [name for name in os.environ if name.startswith("NEURON_")]:
        patch.delenv(name)


@dataclass
class Neuron:
    """The fake machine: what it has, what it does, what was done with it."""

    device: bool = True
    busy: bool = False
    foreign_package: bool = False
    compiler_fails: str = ""
    compiler_dies: int = 0  # so many times, and gives no reason
    stalls_at: str = ""  # the graph at which the compiler never ends
    layout_changes: bool = True  # the compiler has a better layout of weights than the given one
    compiled: list[str] = field(default_factory=list)  # graphs that the compiler was run for
    versions: dict[str, str] = field(default_factory=lambda: dict(VERSIONS))
    calls: list[str] = field(default_factory=list)
    saved: dict[str, Any] = field(default_factory=dict)
    loaded: list[Any] = field(default_factory=list)
    nxd_model: Any = None

    def check_platform(self) -> None:
        if not self.device and not self.platform:
            raise RuntimeError(
                "Unsupported Platform - no device, and NEURON_PLATFORM_TARGET_OVERRIDE was not set "
                "before the import"
            )

    @property
    def platform(self) -> str | None:
        """Its value when the packages were first imported: later changes come late."""
        return self._platform

    def install(self, patch: pytest.MonkeyPatch, folder: Path) -> Neuron:
        """Metadata on sys.path, and modules behind an import hook that notes the platform."""
        from inference.backends.neuron import sdk as neuron_sdk

        lay_out(patch, folder, self.versions, device=self.device)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))  # nothing was compiled here before
        self._platform: str | None = None
        self.nxd_model = type("NxDModel", (NxDModel,), {"neuron": self})
        modules = self.modules()

        def importing(name: str) -> Any:
            if name in modules:
                self._platform = self._platform or os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE")
                sys.modules[name] = modules[name]
                return modules[name]
            raise ImportError(name)

        for name in modules:
            patch.delitem(sys.modules, name, raising=False)
        patch.setattr(neuron_sdk, "import_module", importing)
        return self

    def modules(self) -> dict[str, Any]:
        nxd = types.SimpleNamespace(
            NxDModel=self.nxd_model,
            NxDParallelState=fake_ranks.NxDParallelState,
            shard_checkpoint=fake_ranks.shard_checkpoint,
        )
        functions = fake_build_units.FakeFunctions(self)
        return {
            "torch_neuronx": types.SimpleNamespace(),
            "neuronx_distributed": nxd,
            "neuronx_distributed.trace.functions": functions,
            "neuronx_distributed.trace.hlo_utils": functions,
            "neuronx_distributed.trace.model_builder_utils": fake_build_units,
            "neuronx_distributed.parallel_layers.layers": fake_ranks,
            "neuronx_distributed.parallel_layers.mappings": fake_ranks,
            "neuronx_distributed.parallel_layers.parallel_state": fake_ranks,
            "neuronx_distributed.utils.model_utils": types.SimpleNamespace(
                init_on_device=fake_ranks.init_on_device
            ),
        }
