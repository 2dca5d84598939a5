"""Graphs of native PyTorch at real size: they export whole, and break no rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from compile.ops.rank_graph import meta_module, record_call
from compile.ops.recording import record
from compile.ops.rules import broken, rules_of
from compile.parallel import calls_between
from compile.spec import CompileSpec, prefill_bucket, verify_bucket
from inference.artifact import Bucket
from inference.backends.neuron import COPY, FILL
from inference.model.cache import cache_names
from inference.model.config import read_config
from inference.model.round_graph import idle_inputs
from inference.model.verify_graph import example_inputs
from tests.support.repository import ROOT

JUNK = 4160
CONFIG = read_config(ROOT / "docs/shapes/llama-3.1-8b")
LARGEST = verify_bucket(4, 64, JUNK, JUNK, sampled=True)
BUCKETS = (
    LARGEST,
    verify_bucket(1, 1, 2112, JUNK, sampled=True),
    prefill_bucket(1, 512, JUNK, JUNK),
)
SPEC = CompileSpec("shapes only", "trn2", 128_256, BUCKETS, 4, 4096, 64, "bfloat16", 4)


@pytest.mark.parametrize("bucket", BUCKETS, ids=lambda bucket: bucket.name)
def test_a_graph_at_real_size_breaks_no_rule(bucket: Bucket) -> None:
    recording = record_call(CONFIG, SPEC, idle_inputs(bucket))
    assert broken(recording, rules_of("trn2")) == []
    writes = [op for op in recording.ops if op.name == "index_put"]
    assert len(writes) == 2 * CONFIG.layers, "keys and values of every layer, each once"


@pytest.mark.parametrize("name", [COPY, FILL])
def test_what_is_called_between_breaks_no_rule(name: str) -> None:
    assert broken(record_call(CONFIG, SPEC, calls_between(SPEC)[name]), rules_of("trn2")) == []


@pytest.mark.slow
@pytest.mark.parametrize("bucket", BUCKETS[:1], ids=lambda bucket: bucket.name)
def test_a_graph_at_real_width_exports_whole_with_static_shapes(bucket: Bucket) -> None:
    graph = meta_module(replace(CONFIG, layers=1), SPEC)
    inputs = {name: tensor.to("meta") for name, tensor in example_inputs(bucket).items()}
    program = torch.export.export(graph, (), inputs, strict=True)
    assert not program.range_constraints, "a shape is not fixed"
    lowered = program.run_decompositions({})
    assert set(lowered.graph_signature.buffers_to_mutate.values()) == set(cache_names(1))


class Asked(nn.Module):
    """Operations on scores and on a cache."""

    def __init__(self, run: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run
        self.register_buffer("keys_0", torch.empty(100, 64, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, self.keys_0)


PLACES = torch.tensor([1, 2], dtype=torch.int32)
OLD: list[tuple[str, Callable[[Tensor, Tensor], Tensor]]] = [
    ("argmax", lambda x, cache: x.argmax(-1).to(torch.int32)),
    ("single_numbers", lambda x, cache: cache.index_copy_(0, PLACES.long().to("meta"), x[:2])),
    ("in_place", lambda x, cache: cache.index_put((PLACES.to("meta"),), x[:2])),
]


@pytest.mark.parametrize(("rule", "run"), OLD)
def test_what_only_native_pytorch_refuses_is_caught_there(
    rule: str, run: Callable[[Tensor, Tensor], Tensor]
) -> None:
    recording = record(Asked(run), {"x": torch.empty(8, 64, device="meta")})
    assert rule in {one.rule for one in broken(recording, rules_of("trn2"))}
    assert rule not in {one.rule for one in broken(recording, rules_of("trn1"))}
