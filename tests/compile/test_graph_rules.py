"""Graphs at real size hold only operations that neuronx-cc and native PyTorch take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compile.spec import CompileSpec, mask_words, prefill_bucket, verify_bucket
from inference.backends.neuron.model import calls_between
from inference.files.artifact import Bucket, DraftBucket, FusedPart, RoundBucket
from inference.model.checkpoints.config import (
    ModelConfig,
    parse_config,
    read_config,
    read_raw_config,
)
from inference.model.choice.graph_choice import NoisePlace, fill_inputs
from inference.model.graphs.round_graph import idle_inputs
from inference.tree.tree_shape import Branches
from tests.support.compiler_rules import check_call, run_checked
from tests.support.models import TINY
from tests.support.repository import ROOT

EIGHT, ONE = (ROOT / "docs/shapes" / name for name in ("llama-3.1-8b", "llama-3.2-1b"))
VOCABULARY, JUNK = 128_256, 4160


def spec(target: str, ranks: int, *buckets: Bucket, **more: Any) -> CompileSpec:
    return CompileSpec(
        "shapes only", target, VOCABULARY, buckets, 4, 4096, 64, "bfloat16", ranks, **more
    )


def graphs(ranks: int) -> tuple[Bucket, ...]:
    """The smallest, a middle and the largest graph of each kind."""
    words = mask_words(VOCABULARY, ranks)
    return (
        prefill_bucket(1, 512, JUNK, JUNK),
        verify_bucket(1, 1, 2112, JUNK, sampled=True),
        verify_bucket(4, 16, 2112, JUNK, sampled=False),
        verify_bucket(1, 1, 2112, JUNK, sampled=True, words=words),
        verify_bucket(4, 64, JUNK, JUNK, sampled=True, words=words),
        verify_bucket(4, 64, JUNK, JUNK, sampled=True),
    )


def fused_spec() -> CompileSpec:
    """Rounds with a draft, and the target's own largest graph."""
    shape = Branches((2, 1))
    rounds = [RoundBucket.of(shape, 4, JUNK, JUNK, sampled=sampled) for sampled in (False, True)]
    prefill = (DraftBucket(1, 256, JUNK, 1, 1, False, JUNK),)
    draft = FusedPart("draft", "", read_raw_config(ONE), prefill, tuple(rounds))
    return spec("trn1", 2, graphs(2)[-1], fused=draft)


FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3"},
    "biases": {"attention_bias": True, "mlp_bias": True},
}
WIDE = {
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


def specs() -> Iterator[tuple[str, ModelConfig, CompileSpec]]:
    """What is built, of one layer or two: all layers are alike."""
    large, small = (replace(read_config(shape), layers=1) for shape in (EIGHT, ONE))
    yield "trn1", large, spec("trn1", 2, *graphs(2))
    yield "trn2", large, spec("trn2", 4, *graphs(4))
    yield "fused", small, fused_spec()
    for family, changes in FAMILIES.items():
        config = replace(parse_config(TINY | WIDE | changes), layers=2)
        for target in ("trn1", "trn2"):
            yield f"{family}, {target}", config, spec(target, 2, *graphs(2)[-2:], features=(1, 2))


@pytest.mark.parametrize(
    ("config", "built"), [pytest.param(*rest, id=name) for name, *rest in specs()]
)
def test_a_graph_holds_only_operations_that_the_compiler_takes(
    config: ModelConfig, built: CompileSpec
) -> None:
    calls = {bucket.name: idle_inputs(bucket) for bucket in built.graphs} | calls_between(built)
    found = {name: check_call(config, built, inputs).broken for name, inputs in calls.items()}
    assert {name: broken for name, broken in found.items() if broken} == {}


@pytest.mark.parametrize("seed", [0, 2**31, 2**32 - 1, 2**63 - 1, 0x5EED])
def test_noise_for_any_seed_has_only_integers_that_the_engines_compute_exactly(seed: int) -> None:
    config = parse_config(TINY)
    bucket = verify_bucket(2, 4, 24, 24, sampled=True)
    small = CompileSpec("small", "trn1", config.vocab_size, (bucket,), 2, 20, 4, "float32", 1)
    calls: list[Mapping[str, Tensor]] = [fill_inputs([NoisePlace(1, 17, seed)])]
    for inputs in (*calls, idle_inputs(bucket)):
        broken = check_call(config, small, inputs, "cpu").broken
        assert [line for line in broken if "(nki, " in line] == []


class Operation(nn.Module):
    """An operation on scores, integers and a cache."""

    def __init__(self, run: Callable[[Tensor, Tensor, Tensor], Tensor], device: str) -> None:
        super().__init__()
        self.run = run
        self.register_buffer("keys_0", torch.zeros(100, 64, device=device))

    def forward(self, x: Tensor, seed: Tensor) -> Tensor:
        return self.run(x, seed, self.get_buffer("keys_0"))


Run = Callable[[Tensor, Tensor, Tensor], Tensor]
BROKEN: list[tuple[str, Run]] = [
    ("is a sort", lambda x, seed, cache: torch.topk(x, 8)[0]),
    ("not known", lambda x, seed, cache: torch.sort(x[0])[0]),
    ("single elements", lambda x, seed, cache: torch.scatter(x, 0, x.to(torch.int32).long(), x)),
    ("small windows", lambda x, seed, cache: x.index_put((seed, seed, seed), x[0, 0, 0])),
    ("64 bits", lambda x, seed, cache: seed.to(torch.int64) + 1),
    ("returns integers of 64 bits", lambda x, seed, cache: x.argmax(-1)),
    ("not finite", lambda x, seed, cache: x.clamp(-float("inf"), 0.0)),
]
WRONG_INTEGERS: list[tuple[str, Run]] = [
    ("negative", lambda x, seed, cache: seed >> 16),
    ("beyond", lambda x, seed, cache: (seed & 0xFFFF) * 1000),
]
BROKEN_ON_NATIVE: list[tuple[str, Run]] = [
    ("with their places", lambda x, seed, cache: x.argmax(-1).to(torch.int32)),
    ("single numbers", lambda x, seed, cache: cache.index_copy_(0, seed[0].long(), x[0, :, :64])),
    ("whole cache", lambda x, seed, cache: cache.index_put((seed[0, :2],), x[0, :2, :64])),
]


@pytest.mark.parametrize(
    ("reason", "run", "device", "broken_on"),
    [
        *((*row, "meta", [False, True]) for row in BROKEN),
        *((*row, "cpu", [False, True]) for row in WRONG_INTEGERS),
        *((*row, "meta", [True]) for row in BROKEN_ON_NATIVE),
    ],
)
def test_what_the_compiler_refuses_or_computes_wrongly_is_found(
    reason: str, run: Run, device: str, broken_on: list[bool]
) -> None:
    x = torch.zeros((4, 16, VOCABULARY if device == "meta" else 64), device=device)
    inputs = {"x": x, "seed": torch.full((4, 16), -7, dtype=torch.int32, device=device)}
    rules = {
        native: run_checked(Operation(run, device), inputs, native) for native in (False, True)
    }
    shown = [
        native for native, rule in rules.items() if any(reason in line for line in rule.broken)
    ]
    assert shown == broken_on


def test_native_graphs_write_keys_and_values_of_each_layer_once() -> None:
    config = replace(read_config(EIGHT), layers=2)
    built = spec("trn2", 4, graphs(4)[-1])
    assert check_call(config, built, idle_inputs(built.buckets[0])).names.count("index_put") == 4
