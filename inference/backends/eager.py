"""Runs the Decoder eagerly on CPU or CUDA, and chooses tokens by the cheapest function that suits
all rows. This is the reference for all other backends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from inference.backends import Chosen, LogProbs, Ranked, Segment
from inference.backends.batch import Batch, BatchShape, check_rows, pad
from inference.errors import LimitExceeded
from inference.model.cache import (
    FeatureForm,
    FeatureStore,
    KeysValues,
    copy_states,
    empty_cache,
    write_slots,
)
from inference.model.choice.sampler import (
    Sampling,
    adjust,
    choose_greedy,
    choose_mixed,
    choose_open,
    choose_truncated,
    exclude,
    rank,
    rank_greedy,
    score,
)
from inference.model.decoder import Decoder
from inference.tree.token_tree import IntArray


def choose_at(logits: Tensor, positions: Tensor, segments: Sequence[Segment]) -> list[Chosen]:
    """Choose a token at each picked node of each segment.

    logits: [B, P, V] float32; overwritten if a segment has a rule
    positions: [B, P] int32, positions of the tokens to choose
    """
    _apply_rules(logits, segments)
    if all(segment.params.greedy for segment in segments):
        chosen = choose_greedy(logits)
    elif all(segment.params.truncated for segment in segments):
        chosen = choose_truncated(logits, _sampling(logits, segments), positions)
    else:
        spread = max(int(np.ptp(segment.positions[segment.pick])) for segment in segments)
        some = any(segment.params.truncated for segment in segments)
        choose = choose_mixed if some else choose_open
        chosen = choose(logits, _sampling(logits, segments), positions, 1 + spread)
    table = chosen.cpu().numpy()
    return [
        Chosen(tokens := table[row, : len(segment.pick)], _log_probs(logits[row], segment, tokens))
        for row, segment in enumerate(segments)
    ]


def rank_at(logits: Tensor, positions: Tensor, segments: Sequence[Segment], k: int) -> list[Ranked]:
    """Return the k most likely children of each picked node. Arguments: see choose_at()."""
    _apply_rules(logits, segments)
    if all(segment.params.greedy for segment in segments):
        ids, scores = rank_greedy(logits, k)
    else:
        ids, scores = rank(logits, _sampling(logits, segments), positions, k)
    return ranked_rows(segments, ids.cpu().numpy(), scores.cpu().numpy())


def ranked_rows(
    segments: Sequence[Segment], ids: np.ndarray, scores: np.ndarray
) -> list[Ranked]:  # [B, P, k], [B, P, k]
    """Split the rankings of a batch by segment."""
    return [
        Ranked(ids[row, : len(segment.pick)], scores[row, : len(segment.pick)])
        for row, segment in enumerate(segments)
    ]


def chosen_positions(segment: Segment) -> Tensor:  # [1, p] int32
    """Return the positions of a segment's tokens to choose, as a batch of one row."""
    return torch.from_numpy(segment.positions[segment.pick].astype(np.int32) + 1)[None]


def _apply_rules(logits: Tensor, segments: Sequence[Segment]) -> None:
    for row, segment in enumerate(segments):
        if segment.rule is not None:
            scores, rule = logits[row, : len(segment.pick)], segment.rule()
            adjust(scores, *(_on(logits, array) for array in rule.changes(logits.shape[-1])))
            if rule.allowed is not None:
                exclude(scores, _on(logits, rule.allowed))


def _log_probs(logits: Tensor, segment: Segment, chosen: np.ndarray) -> LogProbs | None:
    """Return a segment's log-probabilities, if requested. logits: [P, V]; chosen: [p]"""
    if segment.scoring is None:
        return None
    likeliest, of = segment.scoring
    rows, tokens = logits[None, : len(chosen)], _on(logits, chosen if of is None else of)
    values = score(rows, _sampling(rows, [segment]), tokens[None], likeliest)
    return LogProbs(*(tensor[0].cpu().numpy() for tensor in values))


def _on(logits: Tensor, array: np.ndarray) -> Tensor:
    return torch.from_numpy(array).to(logits.device)


def _sampling(logits: Tensor, segments: Sequence[Segment]) -> Sampling:
    return Sampling.of([segment.params for segment in segments], logits.device)


SLOT_STEP = 64
"""The number of slots read is a multiple of this, which limits the number of shapes."""


class BatchTensors(NamedTuple):
    """The arrays of a Batch on the device."""

    rows: Tensor  # [B]
    tokens: Tensor  # [B, N]
    slots: Tensor  # [B, N]
    positions: Tensor  # [B, N]
    context_mask: Tensor  # [B, 1 or N, S]
    tree_mask: Tensor  # [B, N, N]
    pick: Tensor  # [B, P]

    @classmethod
    def of(cls, batch: Batch, device: torch.device) -> BatchTensors:
        """Copy the arrays of a batch to a device."""
        arrays = batch.arrays().items()
        return cls(**{name: torch.from_numpy(array).to(device) for name, array in arrays})


class SlotModel(ABC):
    """A model whose caches have `rows` rows, each with `capacity` slots and a junk slot.

    cache: keys and values of all layers
    """

    masks = branches = True

    def __init__(self, cache: KeysValues, *, rows: int, capacity: int, max_nodes: int) -> None:
        self.rows, self.capacity, self.max_nodes = rows, capacity, max_nodes
        self.cache = cache
        self.device, self.dtype = cache.keys[0].device, cache.keys[0].dtype

    @torch.no_grad()
    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        return choose_at(*self._forward(segments), segments)

    @torch.no_grad()
    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        return rank_at(*self._forward(segments), segments, k)

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return rows, max(nodes, self._min_nodes)

    def copy_row(self, source: int, target: int, slots: int) -> None:
        for tensor in self.by_slot:
            copy_states(tensor, source, target, slots)

    @property
    def by_slot(self) -> tuple[Tensor, ...]:
        """All tensors that are indexed by slot, each [rows, slots, width]."""
        return self.cache.tensors

    @property
    def _junk(self) -> int:
        """The slot to which padding is written: the last slot of each row."""
        return self.cache.keys[0].shape[1] - 1

    @property
    def _min_nodes(self) -> int:
        """Minimum nodes of a forward pass: 2 in float32, where kernels round differently for a
        single matrix row, otherwise 1.
        """
        return 2 if self.dtype == torch.float32 else 1

    def _forward(self, segments: Sequence[Segment]) -> tuple[Tensor, Tensor]:
        """Return logits [B, P, V] at the picked nodes, and positions [B, P] of the next tokens."""
        batch = pad(segments, self._shape(segments), junk=self._junk)
        return self._write(BatchTensors.of(batch, self.device))

    @abstractmethod
    def _write(self, batch: BatchTensors) -> tuple[Tensor, Tensor]:
        """Run a forward pass over a batch and write the new keys and values to the caches.

        Returns logits [B, P, V], and positions [B, P] of the next tokens.
        """

    def _shape(self, segments: Sequence[Segment]) -> BatchShape:
        check_rows(segments)
        shape = BatchShape.of(segments)
        if shape.nodes > self.max_nodes:
            raise LimitExceeded(
                f"{shape.nodes} nodes in one call: this model takes at most {self.max_nodes}"
            )
        nodes = max(shape.nodes, self._min_nodes)
        slots = context_slots(shape.slots)
        return shape._replace(
            nodes=nodes,
            contexts=nodes if shape.contexts > 1 else 1,
            slots=min(slots, self._junk + 1),
        )


class EagerModel(SlotModel):
    """A Decoder and its KV caches."""

    def __init__(self, decoder: Decoder, *, rows: int, capacity: int, max_nodes: int) -> None:
        weight = decoder.model.embed_tokens.weight
        cache = empty_cache(decoder.config, rows, capacity, weight.dtype, weight.device)
        super().__init__(cache, rows=rows, capacity=capacity, max_nodes=max_nodes)
        self.decoder = decoder
        self._kept: FeatureStore | None = None

    def keep_features(self, layers: Sequence[int]) -> None:
        form, slots = FeatureForm(tuple(layers), self.decoder.config.hidden_size), self.capacity + 1
        self._kept = FeatureStore(layers, form, self.rows, slots, self.dtype, self.device)

    def features(self, row: int, slots: IntArray) -> Tensor:  # [n, feature layers * hidden]
        assert self._kept is not None, "keep_features() comes before"
        return self._kept.read(row, slots)

    def copy_row(self, source: int, target: int, slots: int) -> None:
        super().copy_row(source, target, slots)
        if self._kept is not None:
            self._kept.copy(source, target, slots)

    def _write(self, batch: BatchTensors) -> tuple[Tensor, Tensor]:
        rows, tokens, slots, positions, context, tree, pick = batch
        layers = () if self._kept is None else self._kept.layers
        out = self.decoder(
            tokens, rows, positions, context, tree, pick, self.cache, feature_layers=layers
        )
        write_slots(self.cache, rows, slots, out.new)
        if self._kept is not None and out.features is not None:
            self._kept.write(rows, slots, out.features)
        return self.decoder.logits(out.states), torch.gather(positions, 1, pick.to(torch.int64)) + 1


def context_slots(needed: int) -> int:
    """Round the number of slots to read up from `needed`."""
    return max(SLOT_STEP, -(-needed // SLOT_STEP) * SLOT_STEP)
