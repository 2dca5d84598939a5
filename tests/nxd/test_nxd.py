"""Targets built, saved, loaded and run by the real neuronx_distributed: its builder, layers,
sharding and packages.

    make test-nxd NXD=path      a checkout of aws-neuron/neuronx-distributed, version 0.18

What it imports from closed packages is stood in for (tests/nxd/closed.py). No compiler runs.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch

from compile import round_check
from compile.agreement import agreements
from compile.neuron import check
from compile.neuron.builder import NeuronBuilder
from compile.spec import verify_bucket
from inference.backends.neuron.loading import load_neuron
from inference.files.artifact import Manifest
from tests.nxd import closed
from tests.support.fake_neuron import VERSIONS, Neuron, lay_out
from tests.support.fake_nxd import NxDModel
from tests.support.models import write_checkpoint
from tests.support.neuron_artifacts import (
    FEW,
    JUNK,
    ROWS,
    build,
    eager_of,
    fused_spec_of,
    spec_of,
)

NXD = os.environ.get("NXD", "")
pytestmark = pytest.mark.skipif(
    not NXD, reason="NXD names no checkout of neuronx-distributed: see CONTRIBUTING.md"
)

MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "two ranks": (2, {}),
    "four ranks with key-value heads repeated": (4, {}),
    "two ranks of a tied qwen2": (2, {"model_type": "qwen2", "tie_word_embeddings": True}),
}


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[closed.Device]:
    """The checkout over its stand-ins, on a machine with a device."""
    folder = tmp_path_factory.mktemp("nxd")
    with pytest.MonkeyPatch.context() as patch:
        lay_out(patch, folder / "packages", VERSIONS, device=True)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))  # nothing was compiled here before
        yield closed.install(patch, Path(NXD), folder)


def load(device: closed.Device, directory: Path, manifest: Manifest) -> Any:
    """Load an artefact; its states are made on the device that is stood in for."""
    base = sys.modules["neuronx_distributed.trace.nxd_model.base_nxd_model"]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NEURON_RT_NUM_CORES", raising=False)  # as in a process of its own
        patch.setattr(
            base.StateInitializer, "forward", lambda initializer: device.zeros(initializer)
        )
        return load_neuron(directory, manifest, lambda line: None)


@pytest.mark.parametrize("name", MODELS)
def test_a_target_built_by_nxd_chooses_as_the_eager_model_does(
    device: closed.Device, tmp_path: Path, name: str
) -> None:
    ranks, changes = MODELS[name]
    checkpoint = write_checkpoint(tmp_path / "model", **changes)
    manifest = build(tmp_path / "artifact", checkpoint, spec_of(ranks, FEW))
    model = load(device, tmp_path / "artifact", manifest)
    found = list(agreements(model, eager_of(checkpoint), manifest))
    assert [one.first for one in found] == ["", ""]


def test_one_graph_more_compiles_one_graph(device: closed.Device, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "model")
    build(tmp_path / "artifact", checkpoint, spec_of(1, FEW))
    more = (*FEW, verify_bucket(ROWS, 2, JUNK, JUNK, sampled=False))
    before = len(closed.FLAGS)
    manifest = build(tmp_path / "artifact", checkpoint, spec_of(1, more))
    assert len(closed.FLAGS) == before + 1
    assert {f"graphs/{bucket.name}.log.txt" for bucket in more} <= manifest.files.keys()


def test_the_noise_of_the_probe_is_the_hosts(device: closed.Device, tmp_path: Path) -> None:
    check.check_noise(spec_of(2), tmp_path)


def test_the_rounds_of_a_fused_target_write_its_own_text(
    device: closed.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write_checkpoint(tmp_path / "target")
    draft = write_checkpoint(tmp_path / "draft", seed=1, num_hidden_layers=1, num_key_value_heads=2)
    spec = fused_spec_of(draft, 2)
    said = list[str]()
    monkeypatch.setattr(round_check, "load_neuron", lambda *of: load(device, *of[:2]))
    build(tmp_path / "artifact", target, spec, partial(NeuronBuilder, draft=draft), said)
    assert said[-2:] == [
        "rounds, greedy: 32 of 32 choices equal",
        "rounds, temperature 1: 32 of 32 choices equal",
    ]


LAYERS = "neuronx_distributed.parallel_layers"
CALLED: dict[str, tuple[str, ...]] = {
    "neuronx_distributed": (
        *("NxDParallelState", "shard_checkpoint", "NxDModel"),
        *(f"NxDModel.{name}" for name in vars(NxDModel) if not name.startswith("_")),
    ),
    "neuronx_distributed.trace.functions": (
        *("trace", "compile", "compile_wlo", "compile_layout_transformer"),
    ),
    "neuronx_distributed.trace.hlo_utils": ("mark_weights_for_wlo", "apply_layout_transformation"),
    "neuronx_distributed.trace.model_builder_utils": (
        *("CompilationArtifacts", "WLOArtifacts", "LayoutTransformerArtifacts"),
    ),
    "neuronx_distributed.utils.model_utils": ("init_on_device",),
    f"{LAYERS}.layers": ("ColumnParallelLinear", "RowParallelLinear", "ParallelEmbedding"),
    f"{LAYERS}.mappings": ("gather_from_tensor_model_parallel_region_with_dim",),
}


@pytest.mark.parametrize("module", CALLED)
def test_what_binds_to_a_stand_in_binds_to_the_checkout(device: closed.Device, module: str) -> None:
    """Each of its parameters has the same default there, and the same place unless it is named."""
    stand_in = Neuron(nxd_model=NxDModel).modules()[module]
    for name in CALLED[module]:
        ours, theirs = (parameters_of(one, name) for one in (stand_in, import_module(module)))
        for place, (parameter, each) in enumerate(ours.items()):
            if each.kind is each.VAR_KEYWORD:
                continue
            assert default_of(theirs[parameter]) == default_of(each), (name, parameter)
            named = each.kind is each.KEYWORD_ONLY
            assert named or [*theirs][place] == parameter, (name, parameter)


def parameters_of(module: Any, name: str) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(attrgetter(name)(module)).parameters


def default_of(parameter: inspect.Parameter) -> Any:
    """Defaults that are objects of the SDK count as None."""
    kinds = int | float | str | torch.dtype
    plain = isinstance(parameter.default, kinds) or parameter.default is parameter.empty
    return parameter.default if plain else None
