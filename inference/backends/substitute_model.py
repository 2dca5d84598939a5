"""A substitute of a target: a draft made of the target's layers with 4-bit weights (SubSpec, arXiv
2509.18344). It needs no training, and agrees with the target far more often than a smaller model
does.
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
from inference.backends.sequence import ModelSequence, Slots, TargetText
from inference.model.cache import KeysValues, read_rows, write_slots
from inference.model.checkpoints.checkpoint import Loading
from inference.model.decoder import Decoder
from inference.model.layer_offload import load_offloaded
from inference.model.quantized import quantize
from inference.sampling import SamplingParams
from inference.tree.token_tree import TreeNodes


def substitute_of(decoder: Decoder) -> Decoder:
    """Return the substitute of a decoder, which is not changed. Its layers are visited in order, so
    they may be offloaded.

    Raises UnsupportedModel and InvalidRequest, as quantize() does.
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
    """Load a checkpoint's substitute with a 4-bit head; round each layer as it is read. Arguments
    and errors: see load_decoder().
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
    """The slots of the target's cache that all nodes of a segment see."""

    row: int
    context: NDArray[np.bool_]  # [S] up to the highest slot in use


_NOTHING = Shared(0, np.zeros(0, dtype=np.bool_))


class SharedCacheModel(EagerModel):
    """A Decoder that reads committed tokens from the target's cache, and candidates from its own.

    A segment's slots and context refer to the draft's own cache, its Shared to the target's cache.
    Used by SharedSequence. `capacity` counts the slots of both caches.

    target: its cache has the same layers, widths and precision as the decoder
    slots: number of slots of a row in the draft's own cache
    """

    def __init__(self, decoder: Decoder, target: EagerModel, *, slots: int, max_nodes: int) -> None:
        super().__init__(decoder, rows=target.rows, capacity=slots, max_nodes=max_nodes)
        self.capacity = target.capacity + slots
        self.target_cache = target.cache  # never written by this class

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
            self.target_cache,
            KeysValues.of(read_rows(tensor, rows, shape.slots) for tensor in self.cache.tensors),
        )
        write_slots(self.cache, rows, slots, out.new)
        return self.decoder.logits(out.states), torch.gather(positions, 1, pick.to(torch.int64)) + 1

    def _committed(self, segments: Sequence[Segment]) -> tuple[Tensor, Tensor]:
        """Return the target's rows [B] and their visible slots [B, 1, S], both int32."""
        views: list[Shared] = [segment.beside or _NOTHING for segment in segments]
        width = max(len(shared.context) for shared in views)
        slots = min(context_slots(width), self.target_cache.keys[0].shape[1])
        mask = np.zeros((len(views), 1, slots), dtype=np.int32)
        for row, shared in zip(mask, views, strict=True):
            row[0, : len(shared.context)] = shared.context
        rows = torch.tensor([shared.row for shared in views], dtype=torch.int32, device=self.device)
        return rows, torch.from_numpy(mask).to(self.device)


class SharedSequence(ModelSequence):
    """A ModelSequence whose committed tokens are in a row of the target.

    Use it between forward passes of the target, after passing it all committed tokens.

    capacity: number of slots of a row in the draft's own cache
    beside: returns the session's current row in the target
    """

    def __init__(
        self,
        capacity: int,
        model: Model,
        row: int,
        beside: TargetText | None,
        params: SamplingParams,
    ) -> None:
        assert beside is not None, "a cache is shared beside its target"
        super().__init__(model, row, params, Slots(capacity))
        self._target = beside
        self.cached = self._committed

    def extend(self, tokens: Sequence[int]) -> None:
        """Commit tokens, whose keys are in the target's cache."""
        self.cached += len(tokens)

    def prepare_nodes(self, tree: TreeNodes, nodes: Sequence[int]) -> Segment:
        target = self._target()
        assert self.cached == self._committed, "the target's row is of another length"
        context = target.slots.committed[: target.slots.high_water].copy()
        return super().prepare_nodes(tree, nodes)._replace(beside=Shared(target.row, context))

    def advance(self, nodes: Sequence[int], tokens: Sequence[int], rejected: Sequence[int]) -> None:
        """Commit a root and tokens below it, and free the draft's own keys."""
        self.slots.release([self._node_slots.pop(node) for node in (*nodes, *rejected)])
        self.cached += len(tokens)

    @property
    def _committed(self) -> int:
        return int(self._target().slots.committed.sum())
