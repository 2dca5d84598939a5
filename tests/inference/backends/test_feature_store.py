"""Features of targets on Neuron: who brings them to the host, and what a head is told."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inference.backends.eager import EagerModel
from inference.backends.eagle_model import read_embeddings
from inference.backends.neuron import NeuronModel
from inference.backends.torch_neuron import GRAPHS, RankPlan, RankProgram, compiled_graphs
from inference.backends.torch_neuron_ranks import Ranks
from inference.model.cache import empty_cache
from inference.model.verify_graph import example_inputs
from tests.support import heads
from tests.support.fake_neuron import Neuron
from tests.support.models import tiny_decoder, write_checkpoint
from tests.support.native_targets import native_spec, prepared
from tests.support.neuron_artifacts import (
    JUNK,
    ROWS,
    VOCABULARY,
    build,
    spec_of,
    whole,
)
from tests.support.strict_torch_neuron import CPU


def test_a_heads_embeddings_are_put_together_from_all_ranks(
    neuron: Neuron, checkpoint: Path, tmp_path: Path
) -> None:
    expected, native = whole(checkpoint).model.embed_tokens.weight, tmp_path / "native"
    built = build(tmp_path / "artifact", checkpoint, spec_of(2, features=heads.KEPT))
    for directory, manifest in (
        (tmp_path / "artifact", built),
        (native, prepared(native, checkpoint, native_spec(2))),
    ):
        found = read_embeddings(directory, manifest)
        assert found.shape == expected.shape
        assert found[:VOCABULARY].equal(expected[:VOCABULARY])
        assert not found[VOCABULARY:].any()


# --- native PyTorch
# --------------------------------------------------------------------------------------------------


def test_only_the_rank_that_answers_brings_features_to_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path))
    decoder = tiny_decoder(vocabulary=VOCABULARY, num_hidden_layers=1)
    cache = empty_cache(decoder.config, ROWS, JUNK, torch.float32)
    spec = replace(native_spec(1), features=(0, 1))
    graphs = compiled_graphs(RankPlan(tmp_path, spec, CPU), decoder, cache, None)
    bucket, here = spec.buckets[1], torch.device("cpu")
    shape = (bucket.rows, bucket.nodes, 2 * decoder.config.hidden_size)
    room = torch.zeros(2 * math.prod(shape))
    first, other = RankProgram(graphs, here, room), RankProgram(graphs, here)
    chosen, features = first(bucket.name, example_inputs(bucket))
    assert features.shape == shape
    assert features.flatten().equal(room[: features.numel()])
    assert features.any()
    assert [part.tolist() for part in other(bucket.name, example_inputs(bucket))] == [
        chosen.tolist()
    ]


@pytest.mark.slow
def test_features_in_bfloat16_come_through_the_processes_of_native_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", num_hidden_layers=1)
    spec = replace(native_spec(2), features=(0, 1), dtype="bfloat16")
    manifest = prepared(tmp_path / "artefact", checkpoint, spec)
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path / "artefact" / GRAPHS))
    ranks = Ranks(RankPlan(tmp_path / "artefact", spec, CPU))
    model, decoder = (
        NeuronModel(ranks, manifest, lambda line: None),
        whole(checkpoint, torch.bfloat16),
    )
    target = EagerModel(decoder, rows=ROWS, capacity=JUNK, max_nodes=16)
    ours, theirs = (heads.kept_of_a_text(each, (0, 1), 1) for each in (model, target))
    ranks.close()
    assert ours.dtype == theirs.dtype == torch.bfloat16
    torch.testing.assert_close(ours, theirs, atol=0.05, rtol=0.05)
