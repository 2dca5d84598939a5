"""The Decoder run as it is, on CPU or CUDA: the reference every other backend is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inference.backends import Segment
from inference.choice import Sampling, choose_greedy, choose_mixed, choose_open, choose_truncated, rank
from inference.errors import InvalidRequest, LimitExceeded
from inference.model.decoder import Decoder
from inference.policy import Ranked
from inference.tree import IntArray

SLOT_STEP = 64
"""Context is read in multiples of this many slots, so that few shapes occur."""


class EagerModel:
    """A Decoder and its KV caches: `rows` rows of `capacity` slots, and one junk slot a row for padding."""

    def __init__(self, decoder: Decoder, *, rows: int, capacity: int, max_nodes: int) -> None:
        self.rows, self.capacity, self.max_nodes = rows, capacity, max_nodes
        self._decoder = decoder
        config = decoder.config
        weight = decoder.model.embed_tokens.weight
        self.device, self.dtype = weight.device, weight.dtype
        shape = (config.layers, rows, config.kv_heads, capacity + 1, config.head_dim)
        self._keys = torch.zeros(shape, dtype=self.dtype, device=self.device)
        self._values = torch.zeros(shape, dtype=self.dtype, device=self.device)

    @torch.no_grad()
    def choose(self, segments: Sequence[Segment]) -> list[IntArray]:
        logits, sampling, positions = self._forward(segments)
        if all(segment.params.greedy for segment in segments):
            chosen = choose_greedy(logits)
        elif all(segment.params.truncated for segment in segments):
            chosen = choose_truncated(logits, sampling, positions)
        else:
            spread = [np.ptp(segment.positions[segment.pick]) for segment in segments]
            choose_ = choose_mixed if any(segment.params.truncated for segment in segments) else choose_open
            chosen = choose_(logits, sampling, positions, 1 + int(max(spread)))
        table = chosen.cpu().numpy()
        return [table[row, : len(segment.pick)] for row, segment in enumerate(segments)]

    @torch.no_grad()
    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        logits, sampling, positions = self._forward(segments)
        ids, scores = (part.cpu().numpy() for part in rank(logits, sampling, positions, k))
        return [Ranked(ids[row, : len(segment.pick)], scores[row, : len(segment.pick)]) for row, segment in enumerate(segments)]

    def _forward(self, segments: Sequence[Segment]) -> tuple[Tensor, Sampling, Tensor]:
        """Logits at the picked nodes [B, P, V], the rows' sampling, and the positions [B, P] of what is chosen there."""
        batch = _pad(segments, self._least_nodes(segments), junk=self.capacity, most=self.max_nodes)
        tokens, slots, positions, pick = (self._int32(part) for part in (batch.tokens, batch.slots, batch.positions, batch.pick))
        rows = self._int32(np.array([segment.row for segment in segments]))
        out = self._decoder(tokens, rows, positions, self._int32(batch.context), self._int32(batch.tree_mask), pick, self._keys, self._values)
        self._keys[:, rows[:, None], :, slots] = out.keys.permute(1, 3, 0, 2, 4)
        self._values[:, rows[:, None], :, slots] = out.values.permute(1, 3, 0, 2, 4)
        chosen_positions = torch.gather(positions, 1, pick.to(torch.int64)) + 1
        sampling = Sampling.of([segment.params for segment in segments], self.device)
        return self._decoder.logits(out.states), sampling, chosen_positions

    def _least_nodes(self, segments: Sequence[Segment]) -> int:
        """In float32 one node runs as two: kernels for a single row round differently from those for several."""
        most = max(len(segment.tokens) for segment in segments)
        return max(most, 2 if self.dtype == torch.float32 else 1)

    def _int32(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32)).to(self.device)


class _Batch:
    """Segments padded to one shape; a padding node lies in the junk slot, at position 0, and sees only itself."""

    def __init__(self, rows: int, nodes: int, picks: int, contexts: int, slots: int, junk: int) -> None:
        self.tokens = np.zeros((rows, nodes), dtype=np.int32)
        self.slots = np.full((rows, nodes), junk, dtype=np.int32)
        self.positions = np.zeros((rows, nodes), dtype=np.int32)
        self.context = np.zeros((rows, contexts, slots), dtype=np.int32)
        self.tree_mask = np.repeat(np.eye(nodes, dtype=np.int32)[None], rows, axis=0)
        self.pick = np.zeros((rows, picks), dtype=np.int32)


def _pad(segments: Sequence[Segment], nodes: int, *, junk: int, most: int) -> _Batch:
    if nodes > max(most, 2):
        raise LimitExceeded(f"{nodes} nodes in one call: this model takes {most}")
    if len({segment.row for segment in segments}) < len(segments):
        raise InvalidRequest("one row twice in a batch")
    slots = max(segment.context.shape[1] for segment in segments)
    slots = max(SLOT_STEP, -(-slots // SLOT_STEP) * SLOT_STEP)
    contexts = 1 if all(segment.context.shape[0] == 1 for segment in segments) else nodes
    batch = _Batch(len(segments), nodes, max(len(segment.pick) for segment in segments), contexts, min(slots, junk + 1), junk)
    for row, segment in enumerate(segments):
        n, seen = len(segment.tokens), segment.context.shape[1]
        batch.tokens[row, :n] = segment.tokens
        batch.slots[row, :n] = segment.slots
        batch.positions[row, :n] = segment.positions
        batch.context[row, : n if contexts > 1 else 1, :seen] = segment.context
        batch.tree_mask[row, :n, :n] = segment.tree_mask
        batch.pick[row] = segment.pick[0]
        batch.pick[row, : len(segment.pick)] = segment.pick
    return batch
