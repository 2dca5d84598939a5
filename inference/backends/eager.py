"""The Decoder run eagerly on CPU or CUDA: the reference that other backends are compared with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from inference.backends import Chosen, Ranked, Segment
from inference.backends.batch import Batch, BatchShape, check_rows, pad
from inference.backends.choices import choose_at, rank_at
from inference.backends.target_features import FeatureForm, FeatureStore
from inference.errors import LimitExceeded
from inference.model.cache import KeysValues, copy_states, empty_cache, write_slots
from inference.model.decoder import Decoder
from inference.tree.token_tree import IntArray

SLOT_STEP = 64
"""Context is read in multiples of this number of slots, so that few shapes occur."""


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
        """Put a batch's arrays on a device."""
        arrays = batch.arrays().items()
        return cls(**{name: torch.from_numpy(array).to(device) for name, array in arrays})


class SlotModel(ABC):
    """A model whose caches have `rows` rows of `capacity` slots, and one junk slot in each row.

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
        for held in self.by_slot:
            copy_states(held, source, target, slots)

    @property
    def by_slot(self) -> tuple[Tensor, ...]:
        """Tensors of data by slot, [rows, slots, width] each."""
        return self.cache.tensors

    @property
    def _junk(self) -> int:
        """The slot of every row that padding is written to: the last of its cache."""
        return self.cache.keys[0].shape[1] - 1

    @property
    def _min_nodes(self) -> int:
        """Minimum number of nodes of a call: 2 in float32, else 1.

        Float32 kernels for a single row of a matrix round differently from those for several.
        """
        return 2 if self.dtype == torch.float32 else 1

    def _forward(self, segments: Sequence[Segment]) -> tuple[Tensor, Tensor]:
        """Return logits at the picked nodes [B, P, V], and positions [B, P] of the tokens to be
        chosen.
        """
        batch = pad(segments, self._shape(segments), junk=self._junk)
        return self._write(BatchTensors.of(batch, self.device))

    @abstractmethod
    def _write(self, batch: BatchTensors) -> tuple[Tensor, Tensor]:
        """Run one forward pass over a batch and write the new keys and values to the caches.

        Returns logits [B, P, V], and positions [B, P] of the tokens to be chosen.
        """

    def _shape(self, segments: Sequence[Segment]) -> BatchShape:
        check_rows(segments)
        least = BatchShape.of(segments)
        if least.nodes > self.max_nodes:
            raise LimitExceeded(
                f"{least.nodes} nodes in one call: this model takes at most {self.max_nodes}"
            )
        nodes = max(least.nodes, self._min_nodes)
        slots = context_slots(least.slots)
        return least._replace(
            nodes=nodes,
            contexts=nodes if least.contexts > 1 else 1,
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

    def features(self, row: int, slots: IntArray) -> Tensor:  # [n, kept layers * hidden]
        assert self._kept is not None, "keep_features() comes before"
        return self._kept.read(row, slots)

    def copy_row(self, source: int, target: int, slots: int) -> None:
        super().copy_row(source, target, slots)
        if self._kept is not None:
            self._kept.copy(source, target, slots)

    def _write(self, batch: BatchTensors) -> tuple[Tensor, Tensor]:
        rows, tokens, slots, positions, context_mask, tree_mask, pick = batch
        kept = () if self._kept is None else self._kept.layers
        out = self.decoder(
            tokens, rows, positions, context_mask, tree_mask, pick, self.cache, kept=kept
        )
        write_slots(self.cache, rows, slots, out.new)
        if self._kept is not None and out.features is not None:
            self._kept.write(rows, slots, out.features)
        return self.decoder.logits(out.states), torch.gather(positions, 1, pick.to(torch.int64)) + 1


def context_slots(least: int) -> int:
    """Return how many slots of context are read if these are needed."""
    return max(SLOT_STEP, -(-least // SLOT_STEP) * SLOT_STEP)
