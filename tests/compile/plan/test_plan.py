"""Planning graphs and their features, and counting what they need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compile.compile_options import CompileOptions
from compile.plan.buckets import GraphSizes, graphs_of
from compile.plan.fit import check_fits, rank_memory, usual_ranks
from compile.plan.memory import device_of, footprint, passes_of
from compile.plan.report import describe
from compile.request import find_checkpoint, make_request
from compile.spec import CompileSpec, verify_bucket
from inference.backends.neuron.model import calls_between
from inference.errors import BadArtifact, LimitExceeded
from inference.files.artifact import Bucket, read_manifest, write_manifest
from inference.model.checkpoints.config import parse_config, read_config, read_raw_config
from tests.support import artifacts, heads
from tests.support.models import TINY, tiny_decoder, write_checkpoint
from tests.support.refusals import assert_refused
from tests.support.repository import ROOT

LLAMA_8B = read_raw_config(ROOT / "docs/shapes/llama-3.1-8b")
CONFIG = parse_config(LLAMA_8B)
EIGHT, ONE = ("docs/shapes/llama-3.1-8b", "docs/shapes/llama-3.2-1b")


def spec_of(**changes: Any) -> CompileSpec:
    """Llama 3.1 8B on trn1.2xlarge."""
    values: dict[str, Any] = {"rows": 1, "sequence_length": 2048, "max_tree_nodes": 64}
    values |= {"model": "big", "target": "trn1", "vocabulary": 128256, "dtype": "bfloat16"}
    values |= {"tensor_parallel": 2} | changes
    sizes = GraphSizes(values["rows"], 128, values["max_tree_nodes"], 1, values["sequence_length"])
    return CompileSpec(**{"buckets": graphs_of(sizes), **values})


def planned(**values: Any) -> CompileSpec:
    """The spec of a build of the 8B model for trn1 with these options."""
    options = CompileOptions(**{"model": EIGHT, "target": "trn1", "dry_run": True, **values})
    return make_request(options, find_checkpoint(options)).spec


def fused(**values: Any) -> CompileSpec:
    return planned(**{"fused": True, "draft_model": ONE, "batch": 1, **values})


def test_weights_and_cache_are_those_published_and_ranks_repeat_the_heads_they_lack() -> None:
    whole, eight, sixteen = (
        footprint(CONFIG, spec_of(tensor_parallel=ranks)) for ranks in (1, 8, 16)
    )
    assert whole.weights == 2 * 8_030_261_248
    assert whole.cache == 128 * 1024 * 2113
    assert whole.weights / 8 == pytest.approx(eight.weights, rel=1e-3)
    assert eight.cache == sixteen.cache == whole.cache / 8


def test_weights_counted_are_those_of_the_decoder() -> None:
    for overrides in (
        {"tie_word_embeddings": True},
        {"model_type": "qwen2"},
        {"model_type": "qwen3", "head_dim": 8},
        {"mlp_bias": True},
        {"attention_bias": True},
    ):
        parameters = sum(parameter.numel() for parameter in tiny_decoder(**overrides).parameters())
        spec = spec_of(target="cpu", tensor_parallel=1, dtype="float32", vocabulary=61)
        assert footprint(parse_config(TINY | overrides), spec).weights == 4 * parameters


def test_a_pass_reads_every_matrix_once() -> None:
    """The table of embeddings is not one: rows of it are looked up."""
    config, spec = CONFIG, spec_of()
    (alone,) = passes_of(config, spec, verify_bucket(1, 1, 1, 2112, sampled=False))
    parameters = 8_030_261_248 - 128256 * 4096
    assert alone.weights(spec) * 2 == pytest.approx(parameters, rel=0.01)
    assert alone.moved(spec) == pytest.approx(parameters, rel=0.01)


@pytest.mark.parametrize(
    "changes",
    [
        {"tensor_parallel": 1, "rows": 4},
        {"sequence_length": 131072},
        {"target": "trn2", "tensor_parallel": 1, "rows": 12},
    ],
)
def test_what_cannot_fit_is_refused_and_every_advice_would_fit(changes: dict[str, Any]) -> None:
    with pytest.raises(LimitExceeded, match=r"it has .* GiB\. Would fit: ") as refusal:
        check_fits(CONFIG, spec_of(**changes))
    advice = str(refusal.value).split("Would fit: ")[1].split("; ")
    assert any("--tensor_parallel" in line for line in advice)
    for line in advice:
        words = line.split(" (")[0].replace("--", "").split()
        values = {
            name: int(value) if value.isdigit() else value
            for name, value in zip(words[::2], words[1::2], strict=True)
        }
        check_fits(CONFIG, spec_of(**changes | values))


def with_odd_draft() -> CompileSpec:
    spec = fused(tensor_parallel=2)
    assert spec.fused is not None
    odd = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 8}
    return replace(spec, fused=replace(spec.fused, config=TINY | odd))


SHARES = "1, 2, 4, 8, 16, 32"


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        *(
            (partial(check_fits, CONFIG, spec_of(tensor_parallel=ranks)), [str(ranks), SHARES])
            for ranks in (3, 12, 64)
        ),
        (lambda: check_fits(CONFIG, with_odd_draft()), ["--tensor_parallel 2", "3 heads"]),
        (partial(spec_of, target="tpu"), ["--target tpu", "cpu, trn1"]),
        (partial(spec_of, target="cpu"), ["--tensor_parallel 2", "cpu"]),
        (lambda: replace(spec_of(), rows=8000), ["16777216"]),
        (partial(planned, features="2,33"), ["--features 2,33", "0 to 32"]),
        (partial(fused, target="cpu", features="2"), ["--features", "--fused"]),
        (partial(fused, gamma=32), ["31 drafted tokens"]),
    ],
)
def test_a_spec_that_cannot_be_built_is_refused(
    call: Callable[[], object], shown: list[str]
) -> None:
    assert_refused(call, shown)


@pytest.mark.parametrize(
    "buckets",
    [
        (Bucket(1, 8, 100, 8, 8, False, 2112),),
        (verify_bucket(1, 64, 99, 99, sampled=True),),
        (verify_bucket(1, 64, 2112, 2112, sampled=True),) * 2,
        (verify_bucket(2, 64, 2112, 2112, sampled=True),),
    ],
)
def test_a_spec_whose_graphs_contradict_its_cache_does_not_exist(
    buckets: tuple[Bucket, ...],
) -> None:
    with pytest.raises(AssertionError):
        replace(spec_of(), buckets=buckets)


@pytest.mark.parametrize("alone", [1, 2])
def test_graphs_by_default_are_few_and_serve_prompts_the_target_alone_and_the_largest_tree(
    alone: int,
) -> None:
    buckets = graphs_of(GraphSizes(4, 128, 24, alone, 1000))
    trees = {
        (bucket.rows, bucket.nodes, bucket.slots, bucket.sampled)
        for bucket in buckets
        if bucket.picks == bucket.nodes
    }
    assert {
        (rows, nodes, 1024, sampled)
        for rows in (1, 4)
        for nodes in (alone, 24)
        for sampled in (False, True)
    } <= trees
    prompts = [bucket for bucket in buckets if bucket.picks == 1 < bucket.nodes]
    assert {(one.nodes, one.levels, one.sampled) for one in prompts} == {(128, 1, False)}
    assert {bucket.junk for bucket in buckets} == {1024}
    for rows in (1, 4):
        buckets = graphs_of(GraphSizes(rows, 256, 64, 1, 2048))
        assert len(buckets) == 18 <= 20
        assert {bucket.rows for bucket in buckets if not bucket.everywhere} == {1}
        assert {bucket.nodes for bucket in buckets if bucket.everywhere} == {1, 4, 16, 64}


def test_a_neuron_target_has_twenty_graphs_at_most_with_those_called_between_and_with_a_draft() -> (
    None
):
    spec = planned(batch=4, tensor_parallel=2)
    assert [*calls_between(spec)] == ["copy_rows", "fill_noise"]
    assert len(spec.graphs) + len(calls_between(spec)) == 20
    prompts = {(graph.nodes, graph.slots) for graph in spec.graphs if not graph.everywhere}
    assert prompts == {(512, slots) for slots in (576, 1088, 1600, 2112)}
    samplings = {(graph.nodes, graph.sampled) for graph in spec.graphs if graph.everywhere}
    assert samplings == {(nodes, True) for nodes in (1, 4, 16, 64)} | {
        (nodes, False) for nodes in (1, 4, 16)
    }
    for rows in (1, 4):
        spec = fused(batch=rows, tensor_parallel=2)
        assert len(spec.graphs) + len(calls_between(spec)) <= 20


def test_masks_add_no_graph_to_twenty_and_serve_every_tree() -> None:
    """A graph with masks takes the place of one without, the largest trees first."""
    plain, masked = planned(), planned(masks=True)
    assert len(masked.graphs) == len(plain.graphs) == 18
    shapes = {graph[:3] for graph in map(astuple, plain.buckets) if graph[1] == graph[3]}
    assert {astuple(graph)[:3] for graph in masked.buckets if graph.masked} == shapes
    assert {graph.words for graph in masked.buckets} == {0, 4008}
    first = planned(masks=True, quick=True)
    assert [graph.masked for graph in first.buckets] == [True, True, False]


def test_noise_that_is_made_ahead_takes_a_ranks_part_of_the_vocabulary_for_32_positions_a_row() -> (
    None
):
    config, spec = CONFIG, spec_of(rows=4)
    assert footprint(config, spec).noise == 4 * 32 * 64_128 * 4
    greedy = tuple(graph for graph in spec.buckets if not graph.sampled)
    assert footprint(config, replace(spec, buckets=greedy)).noise == 0


def test_a_fused_chain_is_as_long_as_the_noise_that_is_kept_on_neuron_alone() -> None:
    assert fused(gamma=31).fused is not None
    assert fused(gamma=32, target="cpu", dtype="bfloat16").fused is not None


def test_a_plan_counts_the_cache_of_a_draft_in_the_graphs() -> None:
    spec = fused(batch=2, tensor_parallel=2)
    target, draft = 2 * 32 * 8 * 128, 2 * 16 * 8 * 64  # keys and values of a slot
    rank = (target + draft) * 2 // 2  # bytes of bfloat16, on one of two ranks
    assert footprint(CONFIG, spec).cache == rank * 2 * spec.cache_slots


def test_a_plan_adds_programs_rings_and_a_tenth_and_refuses_what_then_does_not_fit() -> None:
    config, spec = CONFIG, spec_of(tensor_parallel=1)
    tensors = footprint(config, spec).total
    assert tensors < device_of("trn1").memory
    told = ["programs 1.", " rings ", " reserve 1.60 GiB)"]
    assert_refused(lambda: check_fits(config, spec), told, LimitExceeded)
    need = check_fits(config, spec_of())
    assert need.reserve == device_of("trn1").memory // 10
    assert need.total == sum(need.parts.values()) > need.programs + need.rings + need.reserve
    taken = rank_memory(config, planned()).total
    page = (ROOT / "docs/trainium.md").read_text(encoding="utf-8")
    assert f"They take {taken / (1 << 30):.2f} of 16 GiB, including a reserve" in page
    cpu = spec_of(target="cpu", tensor_parallel=1)
    assert rank_memory(config, cpu) == footprint(config, cpu)


def test_without_a_number_as_many_cores_of_the_smallest_instance_share_the_model_as_can() -> None:
    """14 heads are shared by 2 ranks and not by 4, as those of Qwen2.5-0.5B."""
    for target, model, ranks in (("trn1", EIGHT, 2), ("trn2", EIGHT, 4), ("cpu", ONE, 1)):
        spec = planned(model=model, target=target, batch=1, quick=True)
        assert spec.tensor_parallel == ranks
    shape = {"num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 8}
    odd = parse_config(TINY | shape | {"hidden_size": 112, "intermediate_size": 224})
    assert usual_ranks([odd], "trn2") == 2
    assert usual_ranks([CONFIG, odd], "trn2") == 2


@pytest.mark.parametrize(("length", "rows"), [(2048, 4), (20000, 2), (40000, 1)])
def test_rows_by_default_are_as_many_as_fit(length: int, rows: int) -> None:
    values = {"sequence_length": length, "tensor_parallel": 2}
    assert planned(**values).rows == rows
    assert planned(**values, batch=3).rows == 3


def test_features_are_layers_by_number_those_of_eagle3_or_those_that_a_head_reads(
    tmp_path: Path,
) -> None:
    for features, layers in (("29,2,16", (2, 16, 29)), ("0,32", (0, 32)), ("eagle3", (2, 16, 29))):
        assert planned(features=features).features == layers
    target = write_checkpoint(tmp_path / "target")
    config = read_config(target)
    raw = heads.raw_config(config, eagle_aux_hidden_state_layer_ids=[0, 2])
    head = heads.write_head(tmp_path / "head", raw, heads.tensors_of(config))
    assert planned(model=str(target), target="cpu", features=str(head)).features == (0, 2)
    spec = planned(features="2,16,29")
    lines = [*describe(spec, CONFIG, footprint(CONFIG, spec))]
    assert "inputs of layers 2, 16, 29 with each node: 24 KiB" in lines


def test_features_are_part_of_an_artefacts_digest_and_their_absence_is_not(tmp_path: Path) -> None:
    plain = artifacts.build(tmp_path / "plain")
    named = replace(plain, features=(0, 2))
    assert named.digest() != plain.digest()
    for manifest in (plain, named):
        write_manifest(tmp_path, manifest)
        assert read_manifest(tmp_path) == manifest
        assert ("features" in (tmp_path / "manifest.json").read_text()) == bool(manifest.features)
    write_manifest(tmp_path, replace(plain, features=(2, 0)))
    assert_refused(lambda: read_manifest(tmp_path), ["ascending"], BadArtifact)
