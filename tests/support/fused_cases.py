"""Fused rounds with tiny models, and busy inputs for them: what the proofs of lowering run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from compile.build.equality import random_inputs
from inference.artifact import DraftBucket, RoundBucket
from inference.model.cache import KeysValues, empty_cache
from inference.model.noise_window import empty_window
from inference.model.round_graph import RoundGraph, StatefulRoundGraph
from inference.tree_shape import Branches
from tests.support.buckets import scattered
from tests.support.models import tiny_decoder

LENGTH, SLOTS, JUNK, VOCABULARY = 40, 40, 47, 61


@dataclass(frozen=True)
class Case:
    """A round. stateful: as Neuron takes it; otherwise as CPU does."""

    stateful: bool
    sampled: bool
    branches: tuple[int, ...]
    rows: int = 2
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        return (
            f"{'stateful' if self.stateful else 'caller writes'} {self.bucket.name} "
            f"{str(self.dtype).removeprefix('torch.')}"
        )

    @property
    def bucket(self) -> RoundBucket:
        return RoundBucket.of(Branches(self.branches), self.rows, SLOTS, JUNK, sampled=self.sampled)

    @property
    def draft_bucket(self) -> DraftBucket:
        return DraftBucket(self.rows, 8, SLOTS, 1, 1, False, JUNK)

    def graph(self) -> RoundGraph | StatefulRoundGraph:
        """Always the same weights and the same full caches."""
        target, draft = (
            tiny_decoder(1, num_hidden_layers=1).to(self.dtype),
            tiny_decoder(2, num_hidden_layers=1, hidden_size=8).to(self.dtype),
        )
        generator = torch.Generator().manual_seed(5)
        caches = [
            KeysValues.of(part.normal_(generator=generator) for part in cache.tensors)
            for model in (target, draft)
            for cache in [empty_cache(model.config, self.rows, JUNK, self.dtype)]
        ]
        if self.stateful:
            window = empty_window(self.rows, VOCABULARY).normal_(generator=generator)
            given = window if self.sampled else None
            return StatefulRoundGraph(target, draft, *caches, self.bucket.shape, given)
        return RoundGraph(target, draft, *caches, self.bucket.shape)

    def inputs(self, seed: int) -> dict[str, Tensor]:
        """A busy call; texts lie in other rows of the draft than of the target."""
        inputs = random_inputs(self.bucket, VOCABULARY, self.rows, LENGTH, seed)
        for name in ("slots", "draft_slots"):
            inputs[name] = scattered(self.rows, inputs[name].shape[1], SLOTS, seed)
        inputs["draft_rows"] = inputs["rows"].flip(0)
        return inputs


CASES = [
    Case(stateful=False, sampled=False, branches=(1, 1)),
    Case(stateful=False, sampled=True, branches=(2, 1)),
    Case(stateful=True, sampled=False, branches=(1, 1), dtype=torch.bfloat16),
    Case(stateful=True, sampled=True, branches=(2, 1)),
]
