"""Fused rounds without a compiler: the graphs as they are, run eagerly over caches of their own."""

from __future__ import annotations

import torch

from inference.artifact import Bucket, DraftBucket, RoundBucket
from inference.backends.compiled import CompiledModel
from inference.backends.fused import FusedModel
from inference.model.cache import empty_cache
from inference.model.decoder import Decoder
from inference.model.round_graph import RoundGraph
from inference.model.verify_graph import VerifyGraph
from inference.tree_shape import Branches

torch.set_num_threads(1)


def eager_fused(
    target: Decoder,
    draft: Decoder,
    shape: Branches,
    *,
    rows: int = 2,
    length: int = 120,
    sampled: bool = True,
) -> FusedModel:
    """Graphs for both models, and rounds of two context sizes for one row and for all."""
    capacity = length + shape.nodes
    cache, beside = (
        empty_cache(model.config, rows, capacity, torch.float32) for model in (target, draft)
    )
    alone = Bucket(
        rows,
        max(2, shape.nodes),
        capacity,
        max(2, shape.nodes),
        max(2, shape.nodes),
        sampled,
        capacity,
    )
    fed = Bucket(1, 32, capacity, 1, 1, False, capacity)
    prefill = DraftBucket(1, 32, capacity, 1, 1, False, capacity)
    rounds = {
        RoundBucket.of(shape, count, slots, capacity, sampled=sampled): RoundGraph(
            target, draft, cache, beside, shape
        )
        for count in sorted({1, rows})
        for slots in sorted({min(64, capacity), capacity})
    }
    graphs = {bucket: VerifyGraph(target, cache, bucket.levels) for bucket in (alone, fed)}
    return FusedModel(
        graphs, cache, CompiledModel({prefill: VerifyGraph(draft, beside, 1)}, beside), rounds
    )
