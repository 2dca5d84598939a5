"""Stand-in machines with AWS's Neuron packages: graphs run eagerly on the CPU. What the real
packages refuse or compute wrongly, by AWS's documents and NxD's sources, is an exception here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from inference.backends.neuron import sdk as neuron_sdk
from inference.model.cache import empty_cache, write_slots
from inference.model.checkpoints.checkpoint import load_decoder
from inference.model.checkpoints.config import read_config, read_raw_config
from tests.support import fake_build, fake_ranks
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
    broken_at: str = ""  # the graph at which the user interrupts the build
    layout_changes: bool = True  # the compiler has a better layout of weights than the given one
    compiled: list[str] = field(default_factory=list)  # graphs that the compiler was run for
    versions: dict[str, str] = field(default_factory=lambda: dict(VERSIONS))
    calls: list[str] = field(default_factory=list)
    saved: dict[str, Any] = field(default_factory=dict)
    loaded: list[Any] = field(default_factory=list)
    nxd_model: Any = None
    platform: str | None = None  # as it was when the packages were first imported

    def check_platform(self) -> None:
        if not self.device and not self.platform:
            raise RuntimeError(
                "Unsupported Platform - no device, and NEURON_PLATFORM_TARGET_OVERRIDE was not set "
                "before the import"
            )

    def install(self, patch: pytest.MonkeyPatch, folder: Path) -> Neuron:
        """Metadata on sys.path, and modules behind an import hook that notes the platform."""
        lay_out(patch, folder, self.versions, device=self.device)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))  # nothing was compiled here before
        self.platform = None
        self.nxd_model = type("NxDModel", (NxDModel,), {"neuron": self})
        modules = self.modules()

        def importing(name: str) -> Any:
            if name in modules:
                self.platform = self.platform or os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE")
                sys.modules[name] = modules[name]
                return modules[name]
            raise ImportError(name)

        for name in modules:
            patch.delitem(sys.modules, name, raising=False)
        patch.setattr(neuron_sdk, "import_module", importing)
        return self

    def modules(self) -> dict[str, Any]:
        nxd = SimpleNamespace(
            NxDModel=self.nxd_model,
            NxDParallelState=fake_ranks.NxDParallelState,
            shard_checkpoint=fake_ranks.shard_checkpoint,
        )
        functions = fake_build.FakeFunctions(self)
        return {
            "torch_neuronx": SimpleNamespace(),
            "neuronx_distributed": nxd,
            "neuronx_distributed.trace.functions": functions,
            "neuronx_distributed.trace.hlo_utils": functions,
            "neuronx_distributed.trace.model_builder_utils": fake_build,
            "neuronx_distributed.parallel_layers.layers": fake_ranks,
            "neuronx_distributed.parallel_layers.mappings": fake_ranks,
            "neuronx_distributed.parallel_layers.parallel_state": fake_ranks,
            "neuronx_distributed.utils.model_utils": SimpleNamespace(
                init_on_device=fake_ranks.init_on_device
            ),
        }


LEGACY = {"transformers-neuronx": "0.13.1315", "torch-neuronx": "2.8.0", "transformers": "4.57"}
"""Packages that serve by transformers-neuronx."""


class LlamaForSampling:
    """One row: speculative_forward over a cache whose slots are positions."""

    def __init__(self, directory: str, *, n_positions: list[int], amp: str, **_: Any) -> None:
        ours, raw = read_config(Path(directory)), read_raw_config(Path(directory))
        theirs = {"rope_theta": raw.get("rope_theta", 10000), "rope_scaling": None}
        read = {"num_key_value_heads": ours.kv_heads, "rms_norm_eps": ours.norm_eps}
        self.config = SimpleNamespace(**theirs | read)
        dtype = torch.float32 if amp == "f32" else torch.bfloat16
        self._loading: dict[str, Any] = {"positions": n_positions[-1], "dtype": dtype}
        self._directory, self._vocabulary = Path(directory), ours.vocab_size

    from_pretrained = classmethod(lambda cls, *args, **named: cls(*args, **named))

    def enable_speculative_decoder(self, lengths: list[int]) -> None:
        self._lengths = lengths

    def to_neuron(self) -> None:
        more: dict[str, Any] = {"device": torch.device("cpu"), "vocabulary": self._vocabulary}
        self._decoder = load_decoder(self._directory, **self._loading, **more)
        sizes = self._loading["positions"] - 1, self._loading["dtype"]
        self._cache = empty_cache(self._decoder.config, 1, *sizes)

    @torch.inference_mode()
    def speculative_forward(
        self, ids: Tensor, *, cache_ids: Tensor, start_ids: Tensor, speculation_length: int
    ) -> Tensor:  # [1, k] -> [k, vocab_size, 1]
        k, first = ids.shape[1], int(cache_ids[0])
        assert k == speculation_length in self._lengths, "a length that was not compiled"
        assert cache_ids.tolist() == list(range(first, first + k)), "slots are positions"
        for part in self._cache.tensors:
            part[:, first:] = 1e4  # what lies behind is of other texts
        slots = torch.arange(self._loading["positions"], dtype=torch.int32)
        seen = (slots < first).to(torch.int32)[None, None]
        causal, picks = torch.ones(k, k, dtype=torch.int32).tril()[None], torch.arange(k)[None]
        places, row = slots[first : first + k][None], torch.zeros(1, dtype=torch.int32)
        out = self._decoder(ids, row, places, seen, causal, picks, self._cache)
        write_slots(self._cache, row, places, out.new)
        return self._decoder.logits(out.states).transpose(0, 1).transpose(1, 2)


def install_tnx(
    patch: pytest.MonkeyPatch, folder: Path, instance: str = "trn1.2xlarge", **versions: str
) -> None:
    """Make this machine an instance with such packages."""
    lay_out(patch, folder, LEGACY | versions, device=True)
    (folder / "product_name").write_text(instance, encoding="ascii")
    module: Any = SimpleNamespace(LlamaForSampling=LlamaForSampling)
    patch.setitem(sys.modules, "transformers_neuronx", module)
