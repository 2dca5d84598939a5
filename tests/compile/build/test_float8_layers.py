"""Targets of 8-bit matrices, built for Neuron and run through a strict stand-in for AWS's
packages.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from compile.agreement import agreements
from inference.artifact import read_manifest
from inference.backends.eager import EagerModel
from inference.backends.neuron import SHARD
from inference.backends.neuron_loading import load_neuron
from inference.engine.local_session import LocalSession
from inference.model.decoder import Decoder
from inference.model.float8 import in_float8
from inference.sampling import SamplingParams
from tests.support.drafts import alone, growing, nudged, speculated
from tests.support.equality import NearTies, assert_same_text
from tests.support.fake_neuron import Neuron
from tests.support.models import write_checkpoint
from tests.support.neuron_artifacts import (
    FEW,
    JUNK,
    ROWS,
    VOCABULARY,
    build,
    built_model,
    engine_of,
    spec_of,
    whole,
)

MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "two ranks with biases": (2, {"attention_bias": True, "mlp_bias": True}),
    "four ranks, key-value heads repeated, tied": (4, {"tie_word_embeddings": True}),
}


def emulated(checkpoint: Path) -> Decoder:
    return in_float8(whole(checkpoint, torch.bfloat16))


@pytest.mark.parametrize("name", MODELS)
def test_ranks_together_compute_what_the_emulation_computes(
    neuron: Neuron, tmp_path: Path, name: str
) -> None:
    """States agree to what bfloat16 leaves of them, and so does nearly every choice."""
    ranks, changes = MODELS[name]
    checkpoint = write_checkpoint(tmp_path / "model", **changes)
    manifest = build(tmp_path / "artifact", checkpoint, spec_of(ranks, dtype="fp8"))
    model = load_neuron(tmp_path / "artifact", manifest, lambda line: None)
    assert model.dtype == torch.bfloat16
    eager = EagerModel(emulated(checkpoint), rows=ROWS, capacity=JUNK, max_nodes=16)
    assert all(one.total - one.equal <= 1 for one in agreements(model, eager, manifest))


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_output_equals_the_rounded_targets_own_decoding(
    neuron: Neuron, tmp_path: Path, temperature: float
) -> None:
    checkpoint = write_checkpoint(tmp_path / "model")
    model = built_model(tmp_path / "artifact", checkpoint, spec_of(2, dtype="fp8"))
    engine, draft = engine_of(model), growing(nudged(whole(checkpoint)))
    params, ties = SamplingParams(temperature, seed=7), NearTies()
    prompt = np.random.default_rng(3).integers(0, VOCABULARY, 20).tolist()
    reference = alone(LocalSession(engine), prompt, params, 16)

    def produce(prompt: list[int], n: int) -> list[int]:
        return speculated(LocalSession(engine), draft, prompt, params, n)

    assert_same_text(emulated(checkpoint), prompt, params, reference, produce, ties)
    assert ties.ties == 0


def test_a_ranks_matrices_are_bytes_and_only_its_own_outputs_have_scales(
    neuron: Neuron, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path / "model")
    directory = tmp_path / "artifact"
    manifest = build(directory, checkpoint, spec_of(2, dtype="fp8"))
    assert manifest.dtype == read_manifest(directory).dtype == "fp8"
    shard, layer = load_file(directory / SHARD.format(1)), "decoder.model.layers.0."
    columns, rows = shard[layer + "mlp.up_proj.weight"], shard[layer + "mlp.down_proj.weight"]
    assert (columns.dtype, columns.shape) == (torch.float8_e4m3fn, (12, 16))
    assert (rows.dtype, rows.shape) == (torch.float8_e4m3fn, (16, 12))
    assert shard[layer + "mlp.up_proj.scale.weight"].shape == (12, 1)
    assert shard[layer + "mlp.down_proj.scale.weight"].shape == (16, 1)
    assert shard["decoder.model.embed_tokens.weight"].dtype == torch.bfloat16
    record = json.loads((directory / f"graphs/{FEW[0].name}.json").read_text(encoding="utf-8"))
    assert "fp8e4m3fn-as-fp8e4m3" in record["flags"]
