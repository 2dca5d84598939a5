"""A draft of its target's own shape that reads the target's KV cache: no prompt is computed twice,
and no committed key is kept twice. It never writes there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inference.backends import Segment, Shared
from inference.backends.batch import pad
from inference.backends.eager import EagerModel, context_slots
from inference.model.cache import KeysValues, read_rows, write_slots
from inference.model.decoder import Decoder
from inference.model.sampler import Sampling

_NOTHING = Shared(0, np.zeros(0, dtype=np.bool_))


class SharedCacheModel(EagerModel):
    """A Decoder that sees the target's keys of committed tokens, and its own of candidates.

    A segment's slots and context are of the draft's own cache, and `shared` says what it sees of
    the target's. Its sequences are SharedSequence. `capacity` counts the slots of both.

    target: its cache holds keys and values of the decoder's layers, widths and precision
    own: slots of a row in the draft's own cache
    """

    def __init__(self, decoder: Decoder, target: EagerModel, *, own: int, max_nodes: int) -> None:
        super().__init__(decoder, rows=target.rows, capacity=own, max_nodes=max_nodes)
        self.capacity = target.capacity + own
        self.read = target.cache  # never written here

    def _forward(self, segments: Sequence[Segment]) -> tuple[Tensor, Sampling, Tensor]:
        shape = self._shape(segments)
        given = {
            name: torch.from_numpy(array).to(self.device)
            for name, array in pad(segments, shape, junk=self._junk).arrays().items()
        }
        rows, positions, pick = given["rows"], given["positions"], given["pick"]
        target_rows, committed = self._committed(segments)
        near = given["context_mask"].expand(-1, shape.nodes, -1)  # [B, T, own slots]
        out = self.decoder(
            given["tokens"],
            target_rows,
            positions,
            committed,
            torch.cat((near, given["tree_mask"]), -1),
            pick,
            self.read,
            KeysValues.of(read_rows(held, rows, shape.slots) for held in self.cache.tensors),
        )
        write_slots(self.cache, rows, given["slots"], out.new)
        sampling = Sampling.of([segment.params for segment in segments], self.device)
        chosen = torch.gather(positions, 1, pick.to(torch.int64)) + 1
        return self.decoder.logits(out.states), sampling, chosen

    def _committed(self, segments: Sequence[Segment]) -> tuple[Tensor, Tensor]:
        """Return the target's rows [B] int32, and the slots seen there [B, 1, S] int32."""
        seen = [segment.shared or _NOTHING for segment in segments]
        most = max(len(one.context) for one in seen)
        slots = min(context_slots(most), self.read.keys[0].shape[1])
        mask = np.zeros((len(seen), 1, slots), dtype=np.int32)
        for row, one in zip(mask, seen, strict=True):
            row[0, : len(one.context)] = one.context
        rows = torch.tensor([one.row for one in seen], dtype=torch.int32, device=self.device)
        return rows, torch.from_numpy(mask).to(self.device)
