"""Times of a pass: what others published is met, within the band that is printed."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from compile.plan.report import BAND, PassSeconds, pass_seconds
from compile.spec import CompileSpec, verify_bucket
from inference.files.artifact import Bucket, DraftBucket, FusedPart, RoundBucket
from inference.model.checkpoints.config import (
    ModelConfig,
    parse_config,
    read_config,
    read_raw_config,
)
from inference.tree.tree_shape import Branches
from tests.support.models import TINY
from tests.support.repository import ROOT

SHAPES = ROOT / "docs/shapes"
SIZES = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"),
    *("intermediate_size", "vocab_size", "head_dim"),
)


def sizes(*numbers: int) -> ModelConfig:
    return parse_config(TINY | dict(zip(SIZES, (*numbers, 128), strict=True)))


LLAMA_3_8B = sizes(32, 4096, 32, 8, 14_336, 128_256)
LLAMA_3_70B = sizes(80, 8192, 64, 8, 28_672, 128_256)
LLAMA_2_7B = sizes(32, 4096, 32, 32, 11_008, 32_000)
LLAMA_2_70B = sizes(80, 8192, 64, 8, 28_672, 32_000)
MISTRAL_7B = sizes(32, 4096, 32, 8, 14_336, 32_000)
QWEN_3_4B = sizes(36, 2560, 32, 8, 9728, 151_936)


class Published(NamedTuple):
    """A pass that others measured: bfloat16, greedy."""

    config: ModelConfig
    target: str
    ranks: int
    rows: int
    slots: int  # that its graph reads, whatever the context is
    milliseconds: float
    nodes: int = 1  # of a row


FITTED_TO = [
    # choral-spec, a trn1.2xlarge, 27.24 tokens/s
    Published(LLAMA_3_8B, "trn1", 2, 1, 2048, 36.71),
    # aws-neuron-sdk, about-neuron/benchmarks/trn1/latency_data_decoder.csv
    Published(LLAMA_3_70B, "trn1", 32, 1, 1152, 24.48),
    Published(LLAMA_3_70B, "trn1", 32, 1, 4096, 26.2),
    Published(LLAMA_2_7B, "trn1", 32, 1, 8192, 6.70),
    # optimum-neuron, benchmark/vllm/data-parallel/llama3.1-8b, one synchronous user
    Published(LLAMA_3_8B, "trn1", 8, 32, 4096, 26.35),
    # vllm-project/vllm-neuron, examples/vllm_neuron/models: llama3/dflash, qwen3/dflash; the slots
    # are assumed: four times as many take 0.3 ms
    Published(LLAMA_3_8B, "trn2", 4, 1, 2048, 25.6),
    Published(LLAMA_3_8B, "trn2", 4, 1, 2048, 26.2, nodes=4),
    Published(QWEN_3_4B, "trn2", 4, 1, 2048, 24.7),
]
HELD_OUT = [
    # the same list of AWS's
    Published(LLAMA_2_70B, "trn1", 32, 1, 256, 25.18),
    Published(LLAMA_2_70B, "trn1", 32, 1, 1152, 25.45),
    Published(LLAMA_2_70B, "trn1", 32, 1, 4096, 26.85),
    # its P50 of 26.48 is above its P99 of 24.22: the two are taken to stand swapped
    Published(LLAMA_3_70B, "trn1", 32, 1, 256, 24.22),
    Published(MISTRAL_7B, "trn1", 32, 1, 16_384, 9.89),
    # vllm-neuron, four users: 151.2 and 148.6 tokens/s together
    Published(LLAMA_3_8B, "trn2", 4, 4, 2048, 26.5),
    Published(QWEN_3_4B, "trn2", 4, 4, 2048, 26.9),
]
TUNED = Published(LLAMA_3_8B, "trn2", 8, 1, 2048, 5.42)
"""AWS's page of EAGLE-3 with vLLM-Neuron: 184.4 tokens/s without a draft on eight logical cores."""


def time_of(published: Published) -> PassSeconds:
    config, rows, nodes, slots = published.config, published.rows, published.nodes, published.slots
    bucket = verify_bucket(rows, nodes, slots, slots, sampled=False)
    spec = CompileSpec(
        *("published", published.target, config.vocab_size, (bucket,), rows, slots - nodes),
        *(nodes, "bfloat16", published.ranks),
    )
    time = pass_seconds(config, spec, bucket)
    assert time is not None
    return time


@pytest.mark.parametrize("published", FITTED_TO + HELD_OUT)
def test_published_passes_are_met_within_the_band(published: Published) -> None:
    time, seconds = time_of(published), published.milliseconds / 1e3
    assert time.seconds == pytest.approx(seconds, rel=BAND)
    assert time.low < seconds < time.high


def test_where_published_passes_allow_no_multiple_there_is_a_range_with_the_published_one() -> None:
    time = time_of(TUNED)
    assert time.seconds is None
    assert time.low < TUNED.milliseconds / 1e3 < time.high
    assert str(time) == "4 to 23 ms"
    assert time_of(TUNED._replace(target="trn3", ranks=4)).seconds is None


def high(config: ModelConfig, spec: CompileSpec, bucket: Bucket) -> float:
    time = pass_seconds(config, spec, bucket)
    assert time is not None
    return time.high


def test_a_round_takes_the_targets_pass_and_one_of_the_draft_for_each_level() -> None:
    config = read_config(SHAPES / "llama-3.1-8b")
    both = RoundBucket.of(Branches((2, 1)), 4, 4160, 4160, sampled=True)
    prompt = DraftBucket(1, 256, 4160, 1, 1, False, 4160)
    raw = read_raw_config(SHAPES / "llama-3.2-1b")
    largest = verify_bucket(4, 64, 4160, 4160, sampled=True)
    draft = FusedPart("draft", "", raw, (prompt,), (both,))
    sizes = (4, 4096, 64, "bfloat16", 2)
    spec = CompileSpec("m", "trn1", 128_256, (largest,), *sizes, fused=draft)
    alone = verify_bucket(4, 4, 4160, 4160, sampled=True)
    drafting = high(config, spec, both) - high(config, spec, alone)
    assert 2 * 5e-3 < drafting < 2 * high(config, spec, prompt)
