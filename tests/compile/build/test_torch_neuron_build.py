"""A target for trn2 built by native PyTorch, on the CPU and through a strict stand-in for the
compiler: what an artefact holds, and that nothing is compiled twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from compile.build.build import build_artifact
from compile.neuron.native import TorchNeuronBuilder, cut, sharded_fields
from compile.parallel import parallel_config, parallel_tensors
from compile.spec import verify_bucket
from inference.backends.native.program import Collectives, own_config, rank_layers
from inference.backends.native.ranks import load_native
from inference.files.artifact import Manifest
from inference.model.checkpoints.config import parse_config
from inference.model.decoder import Decoder
from tests.support.models import TINY, tiny_decoder, write_checkpoint
from tests.support.neuron_artifacts import (
    CPU,
    DEATH,
    JUNK,
    ROWS,
    TREE,
    dying_once,
    native_builder,
    native_spec,
    source_of,
)

GREEDY = (verify_bucket(ROWS, TREE, JUNK, JUNK, sampled=False),)


def built(directory: Path, checkpoint: Path, said: list[str]) -> Manifest:
    spec = native_spec(1, GREEDY)
    return build_artifact(
        spec,
        source_of(checkpoint),
        native_builder(checkpoint, spec),
        directory,
        command="test",
        say=said.append,
    )


@pytest.mark.slow
def test_an_artefact_holds_what_was_compiled_and_loading_compiles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", "")  # taken back with the patch
    monkeypatch.setenv("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    checkpoint = write_checkpoint(tmp_path / "model", num_hidden_layers=1)
    out, said = tmp_path / "out", list[str]()
    manifest = built(out, checkpoint, said)
    compiled = [name for name in manifest.files if name.endswith(".neff")]
    assert len(compiled) == 2, "the tree's graph, and the one that copies rows"
    assert {"weights/rank0.safetensors", "weights/config.json"} <= manifest.files.keys()
    assert (manifest.target, manifest.host["interface"]) == ("trn2", "torch.compile")
    assert built(out, checkpoint, said) == manifest, "a complete build was begun again"
    told = list[str]()
    load_native(out, manifest, told.append, CPU, pytest.fail)
    assert not [line for line in told if line.startswith("warning")], told


@pytest.mark.slow
def test_a_graph_whose_compiler_died_without_a_reason_is_compiled_once_more_by_new_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", "")  # taken back with the patch
    monkeypatch.setenv("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "1")
    monkeypatch.setenv(DEATH, str(tmp_path / "died"))
    checkpoint = write_checkpoint(tmp_path / "model", num_hidden_layers=1)
    spec, machine = native_spec(1, GREEDY), CPU._replace(compiler=dying_once)
    builder = TorchNeuronBuilder(spec, checkpoint, versions={}, machine=machine)
    for name in ("weights", "graphs"):
        (tmp_path / name).mkdir()
    builder.prepare(tmp_path)
    assert f"graphs/{GREEDY[0].name}.json" in builder.build(GREEDY[0], tmp_path)
    builder.finish(tmp_path, GREEDY)
    assert "neuronx-cc compilation failed with 70" in capsys.readouterr().err
    assert (tmp_path / "died").exists()


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("family", [{}, {"model_type": "qwen3", "tie_word_embeddings": True}])
def test_shares_of_the_weights_fit_the_layers_and_make_the_whole_again(
    ranks: int, family: dict[str, Any]
) -> None:
    whole = tiny_decoder(num_hidden_layers=1, **family)
    tensors = parallel_tensors(whole.named_parameters(), whole.config, ranks, 61)
    sharded = parallel_config(whole.config, ranks, 61)
    again = parse_config(TINY | {"num_hidden_layers": 1} | family | sharded_fields(sharded))
    assert again == sharded, "weights/config.json says another model"
    assert own_config(sharded, ranks).kv_heads * ranks == sharded.kv_heads
    layers = rank_layers(Collectives(ranks, lambda x: x, lambda x: x))
    shares = [
        {name: cut(name, tensor, rank, ranks) for name, tensor in tensors.items()}
        for rank in range(ranks)
    ]
    for share in shares:
        Decoder(sharded, 64, 61, layers).load_state_dict(share, strict=True)
    for name, tensor in tensors.items():
        parts = [share[name] for share in shares]
        joined = [torch.cat(parts, axis) for axis in range(tensor.dim())]
        assert any(torch.equal(each, tensor) for each in (parts[0], *joined)), name
