"""Buckets of every kind with tiny models, and busy inputs for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compile.agreement import SAMPLINGS, random_segments
from compile.spec import mask_words
from inference.backends.graphs.graph_calls import inputs_of
from inference.engine.colocated.graph_rounds import blank_tree
from inference.files.artifact import Bucket, DraftBucket, RoundBucket
from inference.model.cache import KeysValues, empty_cache
from inference.model.choice.graph_choice import FILLED, NoisePlace, empty_window, fill_inputs
from inference.model.choice.sampler import Sampling
from inference.model.graphs.round_graph import DRAFT, RoundGraph, StatefulRoundGraph, round_inputs
from inference.model.graphs.verify_graph import StatefulGraph, VerifyGraph
from inference.tree.tree_shape import Branches
from tests.support.models import tiny_decoder

SLOTS, JUNK, CACHE_ROWS = 40, 47, 3

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_hidden_layers": 1},
    "llama 2 layers": {},
    "llama 290 ids": {"num_hidden_layers": 1, "vocab_size": 300},
    "qwen2": {"num_hidden_layers": 1, "model_type": "qwen2"},
    "qwen3": {
        "num_hidden_layers": 1,
        "model_type": "qwen3",
        "head_dim": 8,
        "tie_word_embeddings": True,
    },
}


@dataclass(frozen=True)
class Case:
    """A graph for a bucket. stateful: as Neuron takes it, otherwise as CPU and CUDA do"""

    stateful: bool
    sampled: bool
    nodes: int
    rows: int = 1
    prefill: bool = False
    dtype: torch.dtype = torch.float32
    family: str = "llama"
    kept: tuple[int, ...] = ()
    masked: bool = False

    @property
    def bucket(self) -> Bucket:
        picks = 1 if self.prefill else self.nodes
        levels = 1 if self.prefill else self.nodes.bit_length()
        words = mask_words(self.vocabulary, 1) if self.masked else 0
        sizes = self.rows, self.nodes, SLOTS, picks, levels
        return Bucket(*sizes, self.sampled, JUNK, words=words)

    @property
    def vocabulary(self) -> int:
        return 290 if "290" in self.family else 61

    def graph(self) -> VerifyGraph | StatefulGraph:
        """Always the same weights, the same full caches and the same numbers in place of noise."""
        vocabulary = self.vocabulary
        decoder = tiny_decoder(vocabulary=vocabulary, **FAMILIES[self.family]).to(self.dtype)
        generator = torch.Generator().manual_seed(5)
        cache = KeysValues.of(
            part.normal_(generator=generator).to(self.dtype)
            for part in empty_cache(decoder.config, CACHE_ROWS, JUNK, torch.float32).tensors
        )
        if self.stateful:
            window = empty_window(CACHE_ROWS, vocabulary).normal_(generator=generator)
            return StatefulGraph(decoder, cache, window if self.sampled else None, self.kept)
        return VerifyGraph(decoder, cache, self.bucket.levels, self.kept)

    def inputs(self, call: int) -> dict[str, Tensor]:
        """A call with random trees (chains in a prefill) above a random context."""
        inputs = inputs_of(self.bucket, random_segments(self.bucket, 61, CACHE_ROWS, 200, call))
        return inputs | {"slots": scattered(self.rows, self.nodes, SLOTS, call)}


def scattered(rows: int, nodes: int, slots: int, seed: int) -> Tensor:  # [rows, nodes]
    draw = torch.Generator().manual_seed(seed)
    drawn = [torch.randperm(slots, generator=draw)[:nodes] for _ in range(rows)]
    return torch.stack(drawn).to(torch.int32)


def state_of(graph: nn.Module) -> tuple[str, ...]:
    """The names of the buffers that a graph reassigns: none where its caller writes."""
    if not isinstance(graph, StatefulGraph | StatefulRoundGraph):
        return ()
    kept = () if graph.noise is None else ("noise",)
    drafts = graph.names(DRAFT) if isinstance(graph, StatefulRoundGraph) else ()
    return (*graph.names(), *drafts, *kept)


def fill(graph: StatefulGraph | StatefulRoundGraph, inputs: dict[str, Tensor]) -> None:
    """Have a sampled graph make the noise of FILLED positions from each row's least on."""
    if "seed" not in inputs:
        return
    firsts = inputs["after"] if "after" in inputs else inputs["positions"][:, :1] + 1
    for row, first, (low, high) in zip(
        inputs["rows"].tolist(), firsts.amin(-1).tolist(), inputs["seed"].tolist(), strict=True
    ):
        asked = fill_inputs([NoisePlace(row, first + step, 0) for step in range(FILLED)])
        asked["seed"] = torch.tensor([[low, high]], dtype=torch.int32).repeat(FILLED, 1)
        graph(**asked)


PREFILL, BFLOAT16 = True, torch.bfloat16
VARIED = [
    Case(stateful=True, sampled=False, nodes=16, prefill=PREFILL, dtype=BFLOAT16),
    Case(stateful=True, sampled=True, nodes=8, rows=2, family="llama 290 ids", masked=True),
    Case(stateful=True, sampled=True, nodes=4, dtype=BFLOAT16, masked=True, kept=(1,)),
    Case(stateful=False, sampled=False, nodes=8, prefill=PREFILL, family="qwen3", kept=(0, 1)),
    Case(stateful=False, sampled=True, nodes=8, rows=2, family="llama 290 ids", masked=True),
]
"""Cases that together have each feature on both kinds of graphs that have it."""

CASES = [
    *VARIED,
    Case(stateful=True, sampled=True, nodes=1, family="llama 2 layers"),
    Case(stateful=False, sampled=False, nodes=1, rows=2, dtype=BFLOAT16),
    Case(stateful=True, sampled=False, nodes=16, rows=2, family="qwen2"),
    Case(stateful=True, sampled=True, nodes=8, rows=2, family="llama 290 ids"),
    Case(stateful=False, sampled=True, nodes=16, prefill=PREFILL, family="llama 290 ids"),
    Case(stateful=False, sampled=True, nodes=8, rows=2, dtype=BFLOAT16),
]


LENGTH, VOCABULARY = 40, 61


@dataclass(frozen=True)
class RoundCase:
    """A round. stateful: as Neuron takes it; otherwise as CPU does."""

    stateful: bool
    sampled: bool
    branches: tuple[int, ...]
    rows: int = 2
    dtype: torch.dtype = torch.float32

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
        own, drafted = (
            KeysValues.of(part.normal_(generator=generator) for part in cache.tensors)
            for model in (target, draft)
            for cache in [empty_cache(model.config, self.rows, JUNK, self.dtype)]
        )
        if self.stateful:
            window = empty_window(self.rows, VOCABULARY).normal_(generator=generator)
            given = window if self.sampled else None
            return StatefulRoundGraph(target, draft, own, drafted, self.bucket.shape, given)
        return RoundGraph(target, draft, own, drafted, self.bucket.shape)

    def inputs(self, seed: int) -> dict[str, Tensor]:
        """Random entries above a random context; every second row has a pending token. Texts lie in
        other rows of the draft than of the target.
        """
        rng, shape, rows = np.random.default_rng(seed), self.bucket.shape, self.rows
        tree, inner, pending = blank_tree(shape), shape.inner, (np.arange(rows) + seed) % 2
        below = np.zeros((rows, 1 + inner, 1 + inner), dtype=np.int32)
        below[:, 0, 0] = 1
        below[:, 1:, 1:] = tree.mask[:inner, :inner]
        below[:, 1:, 0] = pending[:, None]
        base = rng.integers(1, LENGTH - shape.depth - 1, (rows, 1))
        entry = np.concatenate([(base - 1) * pending[:, None], base + tree.depths[None, :inner]], 1)
        drawn = {
            "positions": base + tree.depths[None],
            "context_mask": rng.random((rows, 1, SLOTS)) < rng.random(),
            "tree_mask": np.tile(tree.mask, (rows, 1, 1)),
            "draft_tokens": rng.integers(0, VOCABULARY, (rows, 2)),
            "draft_positions": entry,
            "draft_context_mask": rng.random((rows, 1, SLOTS)) < rng.random(),
            "draft_tree_mask": below,
            "rows": (target_rows := rng.permutation(rows)),
            "draft_rows": target_rows[::-1],
        }
        inputs = round_inputs(self.bucket) | {
            name: torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32))
            for name, array in drawn.items()
        }
        for name in ("slots", "draft_slots"):
            inputs[name] = scattered(rows, inputs[name].shape[1], SLOTS, seed)
        if self.sampled:
            params = [SAMPLINGS[(row + seed) % len(SAMPLINGS)] for row in range(rows)]
            inputs |= Sampling.of(params, torch.device("cpu"))._asdict()
        return inputs


ROUND_CASES = [
    RoundCase(stateful=False, sampled=False, branches=(1, 1)),
    RoundCase(stateful=False, sampled=True, branches=(2, 1)),
    RoundCase(stateful=True, sampled=False, branches=(1, 1), dtype=torch.bfloat16),
    RoundCase(stateful=True, sampled=True, branches=(2, 1)),
]
