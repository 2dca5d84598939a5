"""A target's substitute, which drafts for it: the target's own layers with 4-bit weights (SubSpec,
arXiv 2509.18344). Nothing is trained, and it agrees with its target far more often than a smaller
model does. Its text is not its target's.

In the target's process it shares embeddings, final norm and head, and reads the target's KV cache,
so no prompt is computed twice and no committed key is stored twice. It never writes there. In
another process it is a separate copy, with a 4-bit head.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from inference.backends import Model, Segment
from inference.backends.batch import pad
from inference.backends.eager import BatchTensors, EagerModel, context_slots
from inference.backends.sequence import ModelSequence, TargetText
from inference.backends.slots import Slots
from inference.model.cache import KeysValues, read_rows, write_slots
from inference.model.checkpoints.checkpoint import Loading
from inference.model.decoder import Decoder
from inference.model.layer_offload import load_offloaded
from inference.model.quantized import quantize
from inference.sampling import SamplingParams
from inference.tree.token_tree import TreeNodes


def substitute_of(decoder: Decoder) -> Decoder:
    """Return the substitute of this decoder, which stays as it is. The layers are visited one after
    the other, so they may be offloaded.

    Raises UnsupportedModel and InvalidRequest as quantize() does.
    """
    with torch.device("meta"):
        draft = Decoder(decoder.config, len(decoder.cos), decoder.vocabulary)
    draft.cos, draft.sin, draft.lm_head = decoder.cos, decoder.sin, decoder.lm_head
    draft.look = decoder.look
    draft.model.embed_tokens, draft.model.norm = decoder.model.embed_tokens, decoder.model.norm
    draft.model.layers = nn.ModuleList(
        quantize(copy.deepcopy(layer), "int4") for layer in decoder.model.layers
    )
    return draft.eval()


def load_substitute(
    directory: Path,
    *,
    positions: int,
    vocabulary: int,
    dtype: torch.dtype | None,
    device: torch.device,
    tell: Callable[[Loading], None] = lambda loading: None,
) -> Decoder:
    """Load a checkpoint's substitute with a 4-bit head. Layers are rounded as they are read.
    Arguments and errors are those of load_decoder().
    """
    decoder = load_offloaded(
        directory,
        positions=positions,
        vocabulary=vocabulary,
        dtype=dtype,
        device=device,
        offload="disk",
        tell=tell,
    )
    return quantize(substitute_of(decoder), "int4")


class Shared(NamedTuple):
    """The part of the target's cache that all nodes of a segment see."""

    row: int
    context: NDArray[np.bool_]  # [S] slots, up to the highest in use


_NOTHING = Shared(0, np.zeros(0, dtype=np.bool_))


class SharedCacheModel(EagerModel):
    """A Decoder that sees the target's keys of committed tokens, and its own of candidates.

    A segment's slots and context are of the draft's own cache, and the Shared beside it says what
    it sees of the target's. Its sequences are SharedSequence. `capacity` counts the slots of both.

    target: its cache holds keys and values of the decoder's layers, widths and precision
    own: slots of a row in the draft's own cache
    """

    def __init__(self, decoder: Decoder, target: EagerModel, *, own: int, max_nodes: int) -> None:
        super().__init__(decoder, rows=target.rows, capacity=own, max_nodes=max_nodes)
        self.capacity = target.capacity + own
        self.read = target.cache  # never written here

    def _forward(self, segments: Sequence[Segment]) -> tuple[Tensor, Tensor]:
        shape = self._shape(segments)
        batch = BatchTensors.of(pad(segments, shape, junk=self._junk), self.device)
        rows, tokens, slots, positions, context_mask, tree_mask, pick = batch
        target_rows, committed = self._committed(segments)
        near = context_mask.expand(-1, shape.nodes, -1)  # [B, T, own slots]
        out = self.decoder(
            tokens,
            target_rows,
            positions,
            committed,
            torch.cat((near, tree_mask), -1),
            pick,
            self.read,
            KeysValues.of(read_rows(held, rows, shape.slots) for held in self.cache.tensors),
        )
        write_slots(self.cache, rows, slots, out.new)
        return self.decoder.logits(out.states), torch.gather(positions, 1, pick.to(torch.int64)) + 1

    def _committed(self, segments: Sequence[Segment]) -> tuple[Tensor, Tensor]:
        """Return the target's rows [B] int32, and the slots seen there [B, 1, S] int32."""
        seen: list[Shared] = [segment.beside or _NOTHING for segment in segments]
        most = max(len(shared.context) for shared in seen)
        slots = min(context_slots(most), self.read.keys[0].shape[1])
        mask = np.zeros((len(seen), 1, slots), dtype=np.int32)
        for row, shared in zip(mask, seen, strict=True):
            row[0, : len(shared.context)] = shared.context
        rows = torch.tensor([shared.row for shared in seen], dtype=torch.int32, device=self.device)
        return rows, torch.from_numpy(mask).to(self.device)


class SharedSequence(ModelSequence):
    """A ModelSequence whose committed tokens lie in a row of the target.

    Calls are made between forward passes of the target, when all its commits have been received.

    own: the draft's slots in a row
    beside: the session's row of the target, at the time of a call
    """

    def __init__(
        self,
        own: int,
        model: Model,
        row: int,
        beside: TargetText | None,
        params: SamplingParams,
    ) -> None:
        assert beside is not None, "a cache is shared beside its target"
        super().__init__(model, row, params, Slots(own))
        self._target = beside
        self.cached = self._committed

    def extend(self, tokens: Sequence[int]) -> None:
        """Commit tokens, whose keys the target has."""
        self.cached += len(tokens)

    def prepare_nodes(self, tree: TreeNodes, nodes: Sequence[int]) -> Segment:
        target = self._target()
        assert self.cached == self._committed, "the target's row is of another length"
        seen = target.slots.committed[: target.slots.high_water].copy()
        return super().prepare_nodes(tree, nodes)._replace(beside=Shared(target.row, seen))

    def advance(self, nodes: Sequence[int], tokens: Sequence[int], gone: Sequence[int]) -> None:
        """Commit a root and tokens below it: the target has their keys, the draft's are freed."""
        self.slots.release([self._node_slots.pop(node) for node in (*nodes, *gone)])
        self.cached += len(tokens)

    @property
    def _committed(self) -> int:
        return int(self._target().slots.committed.sum())
