"""Features of targets on Neuron: a head beside the target reads what the graphs returned, and it
is what an eager target keeps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from inference.artifact import Manifest
from inference.backends import Ranked, Segment
from inference.backends.eager import EagerModel
from inference.backends.eagle import EagleModel, read_embeddings
from inference.backends.neuron import NeuronModel
from inference.backends.neuron_loading import load_neuron
from inference.backends.target_features import (
    FeatureSequence,
)
from inference.backends.torch_neuron import GRAPHS, RankPlan, RankProgram, compiled_graphs
from inference.backends.torch_neuron_ranks import Ranks
from inference.draft_tuning import TUNING
from inference.drafters.draft import Draft
from inference.engine.colocated_drafter import ColocatedDrafter
from inference.engine.engine import Engine
from inference.engine.local_session import LocalSession
from inference.model.cache import empty_cache
from inference.model.eagle import OfTarget, read_head
from inference.model.verify_graph import example_inputs
from inference.order import Decode
from inference.planner.acceptance import Knowledge
from inference.planner.acceptance_file import read_acceptance
from inference.sampling import SamplingParams
from inference.times import DraftTimes, LatencyModel
from inference.tree import IntArray
from tests.support import heads
from tests.support.clock import Clock
from tests.support.drafts import alone, text_of
from tests.support.equality import NearTies, assert_same_text
from tests.support.fake_neuron import Neuron
from tests.support.models import tiny_decoder, write_checkpoint
from tests.support.native_targets import native_spec, prepared
from tests.support.neuron_artifacts import (
    JUNK,
    LENGTH,
    ROWS,
    TREE,
    VOCABULARY,
    build,
    eager_of,
    engine_of,
    spec_of,
    whole,
)
from tests.support.strict_torch_neuron import CPU

SAMPLINGS = [SamplingParams(), SamplingParams(0.7, seed=5), SamplingParams(1.0, seed=2**40 + 3)]
PROMPT = list(range(20))
FORWARD, CALL = 0.010, 0.001


class Served(NamedTuple):
    """A target on two ranks whose graphs return features, and what it was made of."""

    model: NeuronModel
    manifest: Manifest
    directory: Path
    checkpoint: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    checkpoint, directory = write_checkpoint(folder / "model"), folder / "artifact"
    with pytest.MonkeyPatch.context() as patch:
        Neuron().install(patch, folder / "packages")
        manifest = build(directory, checkpoint, spec_of(2, features=heads.KEPT))
        model = load_neuron(directory, manifest, lambda line: None)
        yield Served(model, manifest, directory, checkpoint)


def test_two_ranks_return_the_features_that_the_whole_target_keeps(served: Served) -> None:
    """Ranks that disagree in any bit are an error of the stand-in."""
    eager = eager_of(served.checkpoint)
    for layers in (heads.KEPT, (0, 2)):
        ours, theirs = (heads.kept_of_a_text(each, layers, 1) for each in (served.model, eager))
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


def test_a_copied_row_has_its_features(served: Served) -> None:
    expected = heads.kept_of_a_text(served.model, heads.KEPT, 0)
    served.model.copy_row(0, 1, 20)
    slots = torch.arange(20, dtype=torch.int32).numpy()
    assert served.model.features(1, slots).equal(served.model.features(0, slots))
    assert expected.any()


@pytest.mark.parametrize("params", SAMPLINGS, ids=lambda params: f"T{params.temperature}")
def test_a_head_beside_the_target_leaves_its_text_as_it_is(
    served: Served, params: SamplingParams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, eager = whole(served.checkpoint), eager_of(served.checkpoint)
    head, choose = beside(served, tmp_path), served.model.choose

    def forward(segments: Sequence[Segment]) -> list[IntArray]:
        head.clock.now += FORWARD
        return choose(segments)

    monkeypatch.setattr(served.model, "choose", forward)
    engine = engine_with(served.model, head)
    own = alone(LocalSession(engine_of(eager)), PROMPT, params, 24)

    def produce(prompt: Sequence[int], tokens: int) -> list[int]:
        order = Decode(len(prompt) + tokens, beside=True)
        return text_of(prompt, params, LocalSession(engine), order)

    ties = NearTies()
    assert_same_text(target, PROMPT, params, own, produce, ties)
    assert ties.ties == 0
    assert head.ranked > len(PROMPT), "the head drafted nothing"


class Counted(EagleModel):
    """A head whose calls take their time. ranked: nodes that it was asked for."""

    clock: Clock
    ranked = 0

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        self.clock.now += CALL
        self.ranked += sum(len(segment.tokens) for segment in segments)
        return super().rank(segments, k)


def beside(served: Served, directory: Path) -> Counted:
    """A random head, which shares the embeddings of the artefact."""
    config = whole(served.checkpoint).config
    written = heads.write_head(directory, heads.raw_config(config), heads.tensors_of(config))
    embeddings = partial(read_embeddings, served.directory, served.manifest)
    here = torch.device("cpu")
    given = OfTarget(config, VOCABULARY, torch.float32, here, embeddings)
    served.model.keep_features(heads.KEPT)
    head = read_head(written, given, LENGTH)
    model = Counted(head, rows=ROWS, capacity=LENGTH + TUNING.room, max_nodes=64)
    model.clock = Clock()
    return model


def engine_with(model: NeuronModel, head: Counted) -> Engine:
    """A target and a head that takes a tenth of its time, on a clock of the test."""
    times = {(row, nodes): FORWARD for row in (1, 2) for nodes in (1, 2, 4, 8)}
    known = Knowledge(DraftTimes({1: CALL}), LatencyModel(times), read_acceptance())
    host = ColocatedDrafter(
        Draft(head, sequence=partial(FeatureSequence, model)),
        lambda: known,
        room=TUNING.room,
        clock=head.clock,
    )
    return Engine(
        model, sequence_length=LENGTH, max_tree_nodes=TREE, vocabulary=VOCABULARY,
        times=LatencyModel(times, measured=True),
        drafter=host, clock=head.clock,
    )  # fmt: skip


def test_a_heads_embeddings_are_put_together_from_all_ranks(served: Served, tmp_path: Path) -> None:
    expected = whole(served.checkpoint).model.embed_tokens.weight
    spec = native_spec(2)
    native = prepared(tmp_path / "native", served.checkpoint, spec)
    for directory, manifest in (
        (served.directory, served.manifest),
        (tmp_path / "native", native),
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
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_features_of_native_ranks_come_through_their_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", num_hidden_layers=1)
    spec = replace(native_spec(2), features=(0, 1), dtype=dtype)
    manifest = prepared(tmp_path / "artefact", checkpoint, spec)
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path / "artefact" / GRAPHS))
    ranks = Ranks(RankPlan(tmp_path / "artefact", spec, CPU))
    model = NeuronModel(ranks, manifest, lambda line: None)
    states = torch.float32 if dtype == "float32" else torch.bfloat16
    target = EagerModel(whole(checkpoint, states), rows=ROWS, capacity=JUNK, max_nodes=16)
    ours, theirs = (heads.kept_of_a_text(each, (0, 1), 1) for each in (model, target))
    ranks.close()
    assert ours.dtype == theirs.dtype == states
    near = partial(torch.testing.assert_close, atol=2e-5, rtol=1e-4)
    near = near if dtype == "float32" else partial(near, atol=0.05, rtol=0.05)
    near(ours, theirs)
