"""Runs the Decoder eagerly on CPU or CUDA. This is the reference for all other backends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from inference.backends import Chosen, Ranked, Segment
from inference.backends.batch import Batch, BatchShape, check_rows, pad
from inference.backends.choices import choose_at, rank_at
from inference.errors import LimitExceeded
from inference.model.cache import (
    FeatureForm,
    FeatureStore,
    KeysValues,
    copy_states,
    empty_cache,
    write_slots,
)
from inference.model.decoder import Decoder
from inference.tree.token_tree import IntArray

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
