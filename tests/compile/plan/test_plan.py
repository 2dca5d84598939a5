"""Planning graphs, and counting what they need."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compile.compile_options import CompileOptions
from compile.ops.pass_time import pass_work
from compile.parallel import calls_between
from compile.plan import search
from compile.plan.buckets import Sizes, graphs_of, plan_graphs
from compile.plan.device import device_of
from compile.plan.fit import check_fits, check_sharding, program_bytes, rank_memory, usual_ranks
from compile.plan.memory import footprint, work
from compile.plan.plan_report import compiling
from compile.plan.search import BuildBudget, Cost, grid, plan, serving
from compile.plan.workload import Calls, CallShape, Limits, calls_of, read_load
from compile.request import find_checkpoint, make_request
from compile.spec import CompileSpec, verify_bucket
from inference.artifact import Bucket
from inference.errors import InvalidRequest, LimitExceeded, MissingExtra
from inference.model.config import parse_config
from tests.support.models import TINY, tiny_decoder
from tests.support.repository import ROOT
from tests.support.shapes import LLAMA_8B, LOADS

LIMITS = Limits(rows=2, chunk=16, tree_nodes=8, least_nodes=1, sequence_length=120)


def expected_cost(shapes: Sequence[CallShape], calls: Calls, cost: Cost) -> float:
    """Cost of the mean session when every call runs on the cheapest of `shapes` that serves it."""
    return sum(weight * cost(serving(shapes, call, cost)) for call, weight in calls.items())


def spec_of(**changes: Any) -> CompileSpec:
    """Llama 3.1 8B on trn1.2xlarge."""
    settings_ = {
        "rows": 1,
        "sequence_length": 2048,
        "max_tree_nodes": 64,
        "target": "trn1",
        "dtype": "bfloat16",
        "tensor_parallel": 2,
    } | changes
    limits = Limits(
        settings_["rows"],
        128,
        settings_["max_tree_nodes"],
        1,
        settings_["sequence_length"],
    )
    return CompileSpec(
        **{"model": "big", "vocabulary": 128256, "buckets": graphs_of(Sizes(), limits)} | settings_
    )


def area(shape: CallShape) -> float:
    return shape.rows * shape.nodes * (10.0 + shape.slots)


prompts = st.builds(
    CallShape, st.just(True), st.just(1), st.integers(1, 16), st.sampled_from([1, 16, 100])
)
trees = st.builds(
    CallShape,
    st.just(False),
    st.integers(1, 2),
    st.integers(1, 8),
    st.sampled_from([20, 64, 100, 128]),
)
calls_of_two_kinds = st.dictionaries(prompts | trees, st.floats(0.1, 9), min_size=1, max_size=7)


def brute_force(
    calls: Calls, required: tuple[CallShape, ...], sizes: list[CallShape], budget: BuildBudget
) -> float:
    """The least expected cost of any affordable set, by trying them all."""
    others, best = [shape for shape in sizes if shape not in required], float("inf")
    for count in range(len(others) + 1):
        for extra in combinations(others, count):
            chosen = [*required, *extra]
            graphs = sum(budget.count(shape) for shape in chosen)
            seconds = sum(budget.count(shape) * budget.of(shape) for shape in chosen)
            if graphs <= budget.graphs and seconds <= budget.seconds + 1e-9:
                best = min(best, expected_cost(chosen, calls, area))
    return best


@settings(max_examples=60, deadline=None)
@given(
    calls_of_two_kinds, st.integers(5, 12), st.sampled_from([float("inf"), 40.0, 70.0]), st.data()
)
def test_the_plan_is_the_best_of_all_affordable_sets(
    calls: Calls, graphs: int, seconds: float, data: st.DataObject
) -> None:
    sizes = data.draw(st.lists(st.sampled_from(grid(calls, LIMITS)), max_size=9, unique=True))
    required = tuple(dict.fromkeys(LIMITS.required()))
    budget = BuildBudget(graphs, seconds=seconds, of=lambda shape: 1.0 + shape.slots / 30)
    made = plan(calls, LIMITS, area, budget, sizes)
    assert made.expected == pytest.approx(brute_force(calls, required, sizes, budget))
    assert made.optimal
    assert made.expected == pytest.approx(expected_cost(made.shapes, calls, area))


@settings(max_examples=40, deadline=None)
@given(calls_of_two_kinds, st.integers(5, 20), st.integers(1, 2))
def test_a_plan_keeps_its_budget_and_serves_every_call(
    calls: Calls, graphs: int, samplings: int
) -> None:
    budget = BuildBudget(graphs, samplings=samplings)
    made = plan(calls, LIMITS, area, budget)
    assert sum(budget.count(shape) for shape in made.shapes) <= graphs
    assert all(
        serving(made.shapes, call, area).serves(call) for call in [*calls, *LIMITS.required()]
    )
    assert made.exact <= made.expected * (1 + 1e-9)
    assert made.bound <= made.expected
    assert plan(
        calls, LIMITS, area, replace(budget, graphs=graphs + 1)
    ).expected <= made.expected * (1 + 1e-9)


def test_a_budget_too_small_to_serve_everything_is_refused() -> None:
    calls = {CallShape(False, 1, 2, 50): 1.0}
    with pytest.raises(InvalidRequest, match=r"5 graphs.* 4 graphs"):
        plan(calls, LIMITS, area, BuildBudget(4))
    with pytest.raises(InvalidRequest, match=r"5 graphs and 10 .*9 graphs and 9"):
        plan(calls, LIMITS, area, BuildBudget(9, seconds=540, of=lambda shape: 120))


def test_weights_and_cache_of_a_known_model_are_those_published() -> None:
    need = footprint(parse_config(LLAMA_8B), spec_of(tensor_parallel=1))
    assert need.weights == 2 * 8_030_261_248
    assert need.cache == 128 * 1024 * 2113


def test_weights_counted_are_those_of_the_decoder() -> None:
    for overrides in (
        {"tie_word_embeddings": True},
        {"model_type": "qwen2"},
        {"model_type": "qwen3", "head_dim": 8},
        {"mlp_bias": True},
    ):
        parameters = sum(parameter.numel() for parameter in tiny_decoder(**overrides).parameters())
        spec = spec_of(target="cpu", tensor_parallel=1, dtype="float32", vocabulary=61)
        assert footprint(parse_config(TINY | overrides), spec).weights == 4 * parameters


def test_ranks_share_weights_and_repeat_the_heads_they_lack() -> None:
    config = parse_config(LLAMA_8B)
    one, eight, sixteen = (
        footprint(config, spec_of(tensor_parallel=ranks)) for ranks in (1, 8, 16)
    )
    assert one.weights / 8 == pytest.approx(eight.weights, rel=1e-3)
    assert eight.cache == sixteen.cache == one.cache / 8


def test_a_pass_reads_every_matrix_once() -> None:
    """The table of embeddings is not one: rows of it are looked up."""
    config, spec = parse_config(LLAMA_8B), spec_of()
    call = work(config, spec, rows=1, nodes=1, slots=1, picks=1)
    parameters = 8_030_261_248 - 128256 * 4096
    assert call.flops * 2 == pytest.approx(2 * parameters, rel=0.01)
    assert call.moved == pytest.approx(parameters, rel=0.01)


@pytest.mark.parametrize(
    "changes",
    [
        {"tensor_parallel": 1, "rows": 4},
        {"sequence_length": 131072},
        {"target": "trn2", "tensor_parallel": 1, "rows": 12},
    ],
)
def test_what_cannot_fit_is_refused_and_every_advice_would_fit(changes: dict[str, Any]) -> None:
    config = parse_config(LLAMA_8B)
    with pytest.raises(LimitExceeded, match=r"it has .* GiB\. Would fit: ") as refusal:
        check_fits(config, spec_of(**changes))
    advice = str(refusal.value).split("Would fit: ")[1].split("; ")
    assert any("--tensor_parallel" in line for line in advice)
    for line in advice:
        words = line.split(" (")[0].replace("--", "").split()
        given_ = {
            name: int(value) if value.isdigit() else value
            for name, value in zip(words[::2], words[1::2], strict=True)
        }
        check_fits(config, spec_of(**changes | given_))


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (3, "can share among 1, 2, 4, 8, 16, 32"),
        (64, "can share among 1, 2, 4, 8, 16, 32"),
        (12, "can share among"),
    ],
)
def test_ranks_that_cannot_share_the_heads_are_refused(ranks: int, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        check_sharding(parse_config(LLAMA_8B), spec_of(tensor_parallel=ranks))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target": "tpu"}, "--target tpu: one of cpu, trn1"),
        ({"rows": 0}, "--rows 0: at least 1"),
        ({"sequence_length": 1}, "--sequence_length 1"),
        ({"dtype": "fp8", "target": "trn2"}, "--dtype fp8"),
        ({"target": "cpu"}, "--tensor_parallel 2: the cpu target is not sharded"),
        (
            {"buckets": (Bucket(1, 8, 100, 8, 8, False, 2112),)},
            "no verify graph has 1 rows, 64 nodes and 2112 slots",
        ),
        ({"buckets": (Bucket(1, 8, 100, 8, 8, False, 99),)}, "junk slot is 2112"),
        ({"buckets": (verify_bucket(1, 8, 9, 2112, sampled=True),) * 2}, "asked for twice"),
        ({"buckets": (verify_bucket(2, 64, 2112, 2112, sampled=True),)}, "takes at most 1"),
        ({"rows": 8000}, "more than the 16777216 places"),
    ],
)
def test_a_spec_that_contradicts_itself_does_not_exist(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        replace(spec_of(), **changes)


@pytest.mark.parametrize(("dtype", "alone"), [("float32", 2), ("bfloat16", 1)])
def test_graphs_by_default_serve_prompts_the_target_alone_and_the_largest_tree(
    dtype: str, alone: int
) -> None:
    limits = Limits(4, 128, 24, alone, 1000)
    buckets = graphs_of(Sizes(), limits)
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
    assert {
        (bucket.nodes, bucket.levels, bucket.sampled)
        for bucket in buckets
        if bucket.picks == 1 < bucket.nodes
    } == {(128, 1, False)}
    assert {bucket.junk for bucket in buckets} == {1024}
    assert len(buckets) <= CompileOptions().graphs


@pytest.mark.parametrize("rows", [1, 4])
def test_graphs_by_default_are_few_and_prompts_have_one_row(rows: int) -> None:
    buckets = graphs_of(Sizes(), Limits(rows, 256, 64, 1, 2048))
    assert len(buckets) == 18
    prompts = [bucket for bucket in buckets if not bucket.everywhere]
    assert {bucket.rows for bucket in prompts} == {1}
    assert {bucket.nodes for bucket in buckets if bucket.everywhere} == {1, 4, 16, 64}


def test_a_neuron_target_has_twenty_graphs_with_those_called_between() -> None:
    options = CompileOptions(
        model="docs/shapes/llama-3.1-8b", target="trn1", rows=4, tensor_parallel=2, dry_run=True
    )
    checkpoint = find_checkpoint(options)
    spec = make_request(options, checkpoint).spec
    assert [*calls_between(spec)] == ["copy_rows", "fill_noise"]
    assert len(spec.graphs) + len(calls_between(spec)) == options.graphs == 20
    prompts = {(graph.nodes, graph.slots) for graph in spec.graphs if not graph.everywhere}
    assert prompts == {(512, slots) for slots in (576, 1088, 1600, 2112)}
    samplings = {(graph.nodes, graph.sampled) for graph in spec.graphs if graph.everywhere}
    assert samplings == {(nodes, True) for nodes in (1, 4, 16, 64)} | {
        (nodes, False) for nodes in (1, 4, 16)
    }


def test_noise_that_is_made_ahead_takes_a_ranks_part_of_the_vocabulary_for_32_positions_a_row() -> (
    None
):
    config, spec = parse_config(LLAMA_8B), spec_of(rows=4)
    assert footprint(config, spec).noise == 4 * 32 * 64_128 * 4
    greedy = tuple(graph for graph in spec.buckets if not graph.sampled)
    assert footprint(config, replace(spec, buckets=greedy)).noise == 0


@pytest.mark.parametrize(("target", "refused"), [("trn1", True), ("cpu", False)])
def test_a_fused_chain_on_neuron_is_as_long_as_the_noise_that_is_kept(
    target: str, refused: bool
) -> None:
    options = CompileOptions(
        model="docs/shapes/llama-3.1-8b", target=target, fused=True, rows=1, dry_run=True,
        draft_model="docs/shapes/llama-3.2-1b", speculation_length=31, dtype="bfloat16",
    )  # fmt: skip
    checkpoint = find_checkpoint(options)
    assert make_request(options, checkpoint).spec.fused is not None
    longer = options.but(speculation_length=32)
    if not refused:
        assert make_request(longer, checkpoint).spec.fused is not None
        return
    with pytest.raises(InvalidRequest, match="31 drafted tokens in a row are the most"):
        make_request(longer, checkpoint)


@pytest.mark.parametrize("rows", [1, 4])
def test_with_a_draft_in_the_graphs_there_are_twenty_at_most(rows: int) -> None:
    options = CompileOptions(
        model="docs/shapes/llama-3.1-8b", target="trn1", rows=rows, tensor_parallel=2,
        fused=True, draft_model="docs/shapes/llama-3.2-1b", dry_run=True,
    )  # fmt: skip
    spec = make_request(options, find_checkpoint(options)).spec
    assert len(spec.graphs) + len(calls_between(spec)) <= options.graphs == 20


def test_a_seconds_work_of_a_compiler_and_how_many_run_at_once_are_stated() -> None:
    line, _ = compiling([3 << 20, 1 << 20], at_once=2)
    assert line == (
        "compiling: about 20 min in all, about 15 min for the longest graph; here, 2 at once, "
        "about 15 min"
    )


@pytest.mark.parametrize("fused", [False, True])
def test_programs_are_counted_as_no_fewer_than_their_instructions_and_a_third_more_at_most(
    fused: bool,
) -> None:
    options = CompileOptions(
        model="docs/shapes/llama-3.2-1b", target="trn1", tensor_parallel=2, rows=1, fused=fused,
        draft_model="docs/shapes/llama-3.2-1b" if fused else None, quick=not fused, dry_run=True,
    )  # fmt: skip
    checkpoint = find_checkpoint(options)
    spec = make_request(options, checkpoint).spec
    works = [pass_work(checkpoint.config, spec, graph) for graph in spec.graphs]
    exact = 64 * sum(work.instructions for work in works)
    counted = program_bytes(checkpoint.config, spec) - (96 << 20)
    assert exact < counted
    assert fused or counted < 2 * exact


def test_a_plan_adds_programs_rings_and_a_tenth_and_refuses_what_then_does_not_fit() -> None:
    config, spec = parse_config(LLAMA_8B), spec_of(tensor_parallel=1)
    tensors = footprint(config, spec).total
    assert tensors < device_of("trn1").memory
    with pytest.raises(LimitExceeded, match=r"programs 1\..* rings .* reserve 1\.60 GiB\)"):
        check_fits(config, spec)
    need = check_fits(config, spec_of())
    assert need.reserve == device_of("trn1").memory // 10
    assert need.total == sum(need.parts.values()) > need.programs + need.rings + need.reserve
    options = CompileOptions(model="docs/shapes/llama-3.1-8b", target="trn1", dry_run=True)
    planned = rank_memory(config, make_request(options, find_checkpoint(options)).spec)
    page = (ROOT / "docs/neuron.md").read_text(encoding="utf-8")
    assert f"Of 16 GiB they take {planned.total / (1 << 30):.2f}, a reserve" in page
    cpu = spec_of(target="cpu", tensor_parallel=1)
    assert rank_memory(config, cpu) == footprint(config, cpu)


@pytest.mark.parametrize(
    ("target", "model", "ranks"),
    [
        ("trn1", "docs/shapes/llama-3.1-8b", 2),
        ("inf2", "docs/shapes/llama-3.1-8b", 2),
        ("trn2", "docs/shapes/llama-3.1-8b", 4),
        ("cpu", "docs/shapes/llama-3.2-1b", 1),
    ],
)
def test_without_a_number_the_cores_of_the_smallest_instance_share_the_model(
    target: str, model: str, ranks: int
) -> None:
    options = CompileOptions(model=model, target=target, rows=1, quick=True, dry_run=True)
    assert make_request(options, find_checkpoint(options)).spec.tensor_parallel == ranks


def test_without_a_number_as_many_cores_share_the_model_as_can() -> None:
    """14 heads are shared by 2 ranks and not by 4, as those of Qwen2.5-0.5B."""
    shape = {"num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 8}
    odd = parse_config(TINY | shape | {"hidden_size": 112, "intermediate_size": 224})
    assert usual_ranks([odd], "trn2") == 2
    assert usual_ranks([parse_config(LLAMA_8B)], "trn2") == 4
    assert usual_ranks([parse_config(LLAMA_8B), odd], "trn2") == 2


@pytest.mark.parametrize(
    ("length", "ranks", "rows"), [("2048", "2", 4), ("20000", "2", 2), ("40000", "2", 1)]
)
def test_rows_by_default_are_as_many_as_fit(length: str, ranks: str, rows: int) -> None:
    options = CompileOptions(
        model="docs/shapes/llama-3.1-8b", target="trn1", sequence_length=int(length),
        tensor_parallel=int(ranks), dry_run=True,
    )  # fmt: skip
    spec = make_request(options, find_checkpoint(options)).spec
    assert spec.rows == rows
    assert make_request(options.but(rows=3), find_checkpoint(options)).spec.rows == 3


def test_a_planned_spec_explains_itself() -> None:
    from compile.plan.plan_report import explain

    budget, spec = BuildBudget(10), spec_of(rows=4)
    limits = Limits(spec.rows, 256, spec.max_tree_nodes, 1, spec.sequence_length)
    load, config = read_load(LOADS / "batch.json"), parse_config(LLAMA_8B)
    planned = plan_graphs(load, config, spec, budget, limits)
    text = "\n".join(explain(planned, budget, 2))
    assert "synthetic, imitates summaries" in text
    assert "12 graphs (2 for other calls) of 12 allowed" in text
    assert planned.smaller is not None
    assert planned.smaller >= planned.plan.padding >= planned.larger


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_a_search_that_is_cut_short_serves_everything_and_states_its_gap(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_MOST_SECONDS", seconds)
    limits = Limits(4, 256, 64, 1, 2048)
    calls = calls_of(read_load(LOADS / "chat.json"), limits)
    made = plan(calls, limits, area, BuildBudget(14))
    assert made.bound <= made.expected
    assert made.expected == pytest.approx(expected_cost(made.shapes, calls, area))
    assert set(limits.required()) <= set(made.shapes)


def test_planning_without_its_solver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(MissingExtra, match=r"outrider\[compile\]"):
        plan({CallShape(False, 1, 2, 50): 1.0}, LIMITS, area, BuildBudget(9))
