"""Graphs at real size, held against what neuronx-cc and native PyTorch refuse: the shipped graphs
have none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from compile.ops.op_work import instructions
from compile.ops.ranges import ranges
from compile.ops.recording import Op, Recording, meta_module, record, record_call
from compile.ops.rules import RULES, Violation, broken, live_bytes, rules_of
from compile.parallel import calls_between
from compile.plan.device import device_of
from compile.spec import CompileSpec, mask_words, prefill_bucket, verify_bucket
from inference.artifact import Bucket, DraftBucket, FusedPart, RoundBucket
from inference.backends.neuron import COPY, FILL
from inference.model.cache import cache_names
from inference.model.config import read_config, read_raw_config
from inference.model.round_graph import idle_inputs
from inference.model.verify_graph import example_inputs
from inference.tree_shape import Branches
from tests.support.commands import Run
from tests.support.repository import ROOT

SHAPES = ROOT / "docs/shapes"
VOCABULARY, JUNK = 128_256, 4160
WORDS = mask_words(VOCABULARY, 2)


def record_shipped() -> Iterator[Recording]:
    """The smallest, a middle and the largest graph of each kind, and rounds with a draft."""
    buckets = [
        prefill_bucket(1, 512, JUNK, JUNK),
        verify_bucket(1, 1, 2112, JUNK, sampled=True),
        verify_bucket(4, 16, 2112, JUNK, sampled=False),
        verify_bucket(1, 1, 2112, JUNK, sampled=True, words=WORDS),
        verify_bucket(4, 64, JUNK, JUNK, sampled=True, words=WORDS),
        verify_bucket(4, 64, JUNK, JUNK, sampled=True),
    ]
    large, small = (read_config(SHAPES / name) for name in ("llama-3.1-8b", "llama-3.2-1b"))
    alone = spec(tuple(buckets), None)
    for inputs in (*map(idle_inputs, buckets), *calls_between(alone).values()):
        yield record_call(large, alone, inputs)
    shape = Branches((2, 1))
    rounds = tuple(
        RoundBucket.of(shape, 4, JUNK, JUNK, sampled=sampled) for sampled in (False, True)
    )
    prefill = (DraftBucket(1, 256, JUNK, 1, 1, False, JUNK),)
    draft = read_raw_config(SHAPES / "llama-3.2-1b")
    fused = FusedPart("draft", "", draft, prefill, rounds)
    both = spec(tuple(buckets[-2:]), fused)
    for inputs in (*map(idle_inputs, both.graphs), *calls_between(both).values()):
        yield record_call(small, both, inputs)


def spec(buckets: tuple[Bucket, ...], fused: FusedPart | None) -> CompileSpec:
    return CompileSpec(
        "shapes only", "trn1", VOCABULARY, buckets, 4, 4096, 64, "bfloat16", 2, fused=fused
    )


@cache
def shipped() -> tuple[Recording, ...]:
    return tuple(record_shipped())


def test_the_shipped_graphs_break_no_rule() -> None:
    assert {(one.rule, one.function) for graph in shipped() for one in broken(graph)} == set()


def test_the_shipped_graphs_stay_within_the_devices_memory_with_every_result_stored() -> None:
    weights_and_caches = 9 * 2**30
    for graph in shipped():
        assert weights_and_caches + live_bytes(graph)[0] < device_of("trn1").memory


class OldStyle(nn.Module):
    """Operations that graphs once had, at the sizes they had."""

    def __init__(self, run: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: Tensor, seed: Tensor) -> Tensor:
        return self.run(x, seed)


def recorded(
    run: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...], *seeds: int
) -> Recording:
    """The operations on numbers of this shape. seeds: the shape of the seeds, if it is another"""
    with torch.device("meta"):
        x, seed = torch.empty(shape), torch.empty(seeds or shape[:-1], dtype=torch.int32)
    return record(OldStyle(run), {"x": x, "seed": seed})


def violations(
    run: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...] = (4, 16, VOCABULARY)
) -> list[Violation]:
    return broken(recorded(run, shape))


OLD: list[tuple[str, Callable[[Tensor, Tensor], Tensor]]] = [
    ("top_k_shape", lambda x, seed: torch.topk(x, 8)[0]),
    ("top_k_shape", lambda x, seed: torch.topk(x.flatten(0, 1), 8, dim=0)[0]),
    ("top_k_shape", lambda x, seed: torch.sort(x[0])[0]),
    ("top_k_width", lambda x, seed: torch.topk(x.flatten(0, 1), 8)[0]),
    ("top_k_type", lambda x, seed: torch.topk(seed, 2)[0]),
    ("variadic", lambda x, seed: x.max(-1)[0]),
    ("variadic", lambda x, seed: x.argmax().to(torch.int32)),
    ("variadic", lambda x, seed: seed.argmax(-1).to(torch.int32)),
    ("shift", lambda x, seed: seed >> torch.tensor(16, dtype=torch.int32, device="meta")),
    ("shift", lambda x, seed: seed >> 16),
    ("integers", lambda x, seed: seed + seed),
    ("integers", lambda x, seed: (seed & 0xFFFF) * 1000),
    ("integer_matmul", lambda x, seed: seed @ seed.T),
    ("scatter_window", lambda x, seed: torch.scatter(x, 0, x.to(torch.int32), x)),
    ("gather_shape", lambda x, seed: torch.gather(x, 1, x.to(torch.int32))),
    ("types", lambda x, seed: seed.to(torch.int64) + 1),
    ("types", lambda x, seed: x.double()),
    ("types", lambda x, seed: x.argmax(-1)),
    ("finite", lambda x, seed: x.clamp(-float("inf"), 0.0)),
    ("known", lambda x, seed: torch.nn.functional.pixel_shuffle(x[:, :, None, :64], 2)),
]


@pytest.mark.parametrize(("rule", "run"), OLD)
def test_old_style_operations_are_caught_with_their_size_and_line(
    rule: str, run: Callable[[Tensor, Tensor], Tensor]
) -> None:
    found = [one for one in violations(run) if one.rule == rule]
    assert found
    assert all(one.where.startswith("tests/compile/ops/test_graph_rules.py:") for one in found)
    assert all("[" in one.what for one in found)


def test_every_rule_is_caught_by_one_of_these() -> None:
    assert {rule.__name__ for rule in RULES} == {rule for rule, _ in OLD}


NEW: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, seed: torch.topk(x.view(-1, VOCABULARY // 8), 8)[1].to(torch.int32),
    lambda x, seed: x.argmax(-1).to(torch.int32),
    lambda x, seed: (seed & 0x7FFFFFFF) >> 16,
    lambda x, seed: (seed & 0xFFFF) + ((seed & 0xFFFF) << 4),
    lambda x, seed: torch.gather(x, -1, seed[:, :, None]),
    lambda x, seed: x.index_put((seed[0].clamp(0, 3),), x[0]),
]


@pytest.mark.parametrize("run", NEW)
def test_what_replaces_them_is_let_through(run: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert violations(run) == []


def test_a_graph_with_too_many_instructions_is_named_by_its_largest_operation() -> None:
    found = violations(lambda x, seed: x + 1, (4, 16, 2**33))
    assert [one.rule for one in found] == ["instructions"]
    assert "5,000,000" in found[0].what


def test_views_and_constants_take_no_instructions() -> None:
    def run(x: Tensor, seed: Tensor) -> Tensor:
        return x.flatten(0, 1)[:3].view(-1) * torch.arange(3 * 64, device="meta")

    ops = recorded(run, (2, 4, 64)).ops
    assert [op.name for op in ops if instructions(op)] == ["mul"]


def test_the_live_set_is_what_is_needed_at_one_time() -> None:
    def run(x: Tensor, seed: Tensor) -> Tensor:
        doubled = x * 2
        return (doubled + 1).sum() + doubled.sum()

    held, at = live_bytes(recorded(run, (1000,), 1))
    assert held == 2 * 4000 + 4
    assert isinstance(at, Op)


def test_bounds_of_integers_hold_what_a_call_can_make() -> None:
    def run(x: Tensor, seed: Tensor) -> Tensor:
        low, high = seed & 0xFFFF, (seed & 0x7FFFFFFF) >> 16
        return ((low << 3) | (low >> 13)) ^ (high + low)

    torch.manual_seed(0)
    words = torch.randint(-(2**31), 2**31, (64,), dtype=torch.int64).to(torch.int32)
    recording = recorded(run, (1,), 64)
    bounds = ranges(recording)[recording.results[0].number]
    made = run(words, words)
    assert bounds.least <= int(made.min())
    assert int(made.max()) <= bounds.most < 2**20


def test_places_counted_from_rows_that_are_looked_up_are_known_to_be_few() -> None:
    def looked_up(x: Tensor, seed: Tensor) -> Tensor:
        return x.index_select(0, seed) + seed[:, None] * 1000

    assert violations(looked_up, (16, 8)) == []
    assert {one.rule for one in violations(lambda x, seed: x + seed[:, None] * 1000, (16, 8))} == {
        "integers"
    }


def test_the_command_names_what_a_graph_breaks_and_fails(run: Run) -> None:
    rules = ["compile", "rules", "--rows", "1", "--sampling", "greedy", "--target", "trn1"]
    small, large = (["--model", SHAPES / name] for name in ("llama-3.2-1b", "llama-3.1-8b"))
    trees = ["--tree_sizes", "1,2", "--max_tree_nodes", "2"]
    kept = run(*rules, *small, *trees, "--slots", "2050")
    assert (kept.code, "verify_b1_t1_s2050_greedy: 0 violations" in kept.out) == (0, True)
    large += ["--sequence_length", "8192", "--prompt_chunks", "4096", "--slots", "8194"]
    shown = run(*rules, *large, *trees)
    assert shown.code == 1
    assert "prefill_b1_t4096_s8194_greedy: 1 violations" in shown.out
    assert "  instructions: " in shown.out
    run("compile", "rules", *small, "--target", "cpu").assert_failed("--target is needed")


# --- native PyTorch


NATIVE = read_config(SHAPES / "llama-3.1-8b")
LARGEST = verify_bucket(4, 64, JUNK, JUNK, sampled=True)
BUCKETS = (
    LARGEST,
    verify_bucket(4, 64, JUNK, JUNK, sampled=True, words=mask_words(VOCABULARY, 4)),
    verify_bucket(1, 1, 2112, JUNK, sampled=True),
    prefill_bucket(1, 512, JUNK, JUNK),
)
SPEC = CompileSpec("shapes only", "trn2", VOCABULARY, BUCKETS, 4, 4096, 64, "bfloat16", 4)


@pytest.mark.parametrize("bucket", BUCKETS, ids=lambda bucket: bucket.name)
def test_a_graph_at_real_size_breaks_no_rule(bucket: Bucket) -> None:
    recording = record_call(NATIVE, SPEC, idle_inputs(bucket))
    assert broken(recording, rules_of("trn2")) == []
    writes = [op for op in recording.ops if op.name == "index_put"]
    assert len(writes) == 2 * NATIVE.layers, "keys and values of every layer, each once"


@pytest.mark.parametrize("name", [COPY, FILL])
def test_what_is_called_between_breaks_no_rule(name: str) -> None:
    assert broken(record_call(NATIVE, SPEC, calls_between(SPEC)[name]), rules_of("trn2")) == []


@pytest.mark.slow
@pytest.mark.parametrize("bucket", BUCKETS[:1], ids=lambda bucket: bucket.name)
def test_a_graph_at_real_width_exports_whole_with_static_shapes(bucket: Bucket) -> None:
    graph = meta_module(replace(NATIVE, layers=1), SPEC)
    inputs = {name: tensor.to("meta") for name, tensor in example_inputs(bucket).items()}
    program = torch.export.export(graph, (), inputs, strict=True)
    assert not program.range_constraints, "a shape is not fixed"
    lowered = program.run_decompositions({})
    assert set(lowered.graph_signature.buffers_to_mutate.values()) == set(cache_names(1))


class Cached(nn.Module):
    """Operations on scores and on a cache."""

    def __init__(self, run: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run
        self.register_buffer("keys_0", torch.empty(100, 64, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, self.keys_0)


PLACES = torch.tensor([1, 2], dtype=torch.int32)
NATIVE_OLD: list[tuple[str, Callable[[Tensor, Tensor], Tensor]]] = [
    ("argmax", lambda x, cache: x.argmax(-1).to(torch.int32)),
    ("single_numbers", lambda x, cache: cache.index_copy_(0, PLACES.long().to("meta"), x[:2])),
    ("in_place", lambda x, cache: cache.index_put((PLACES.to("meta"),), x[:2])),
]


@pytest.mark.parametrize(("rule", "run"), NATIVE_OLD)
def test_what_only_native_pytorch_refuses_is_caught_there(
    rule: str, run: Callable[[Tensor, Tensor], Tensor]
) -> None:
    recording = record(Cached(run), {"x": torch.empty(8, 64, device="meta")})
    assert rule in {one.rule for one in broken(recording, rules_of("trn2"))}
    assert rule not in {one.rule for one in broken(recording, rules_of("trn1"))}
