"""A DFlash head as a Model: one call ranks a root and the masks below it.

Keys and values in the cache are only those made of the target's features, at the slots of committed
tokens; those of a block are dropped after its call. A segment has the known features beside it
(`KnownFeatures`). It ranks one root with masks in a chain below, never other nodes: the features
above these are not known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.backends import Chosen, Masks, Ranked, Segment
from inference.backends.batch import check_rows
from inference.backends.choices import rank_at
from inference.model.block_head import BlockHead
from inference.model.cache import empty_cache, write_slots
from inference.tree.token_tree import IntArray


class _Row:
    """Positions of a row's slots, and which of them hold keys."""

    def __init__(self, capacity: int) -> None:
        self._positions = np.zeros(capacity, dtype=np.int32)  # [capacity]
        self._injected = np.zeros(capacity, dtype=np.bool_)  # [capacity]

    def inject(self, segment: Segment) -> IntArray:  # [n] slots
        """Note the segment's nodes. Returns the slots of committed tokens whose features are known,
        and which hold no keys yet; from now on they do.
        """
        self._positions[segment.slots] = segment.positions
        self._injected[segment.slots] = False
        slots = _committed(segment)
        known = 0 if segment.beside is None else segment.beside.known
        new = slots[~self._injected[slots] & (self._positions[slots] < known)]
        self._injected[new] = True
        return new.astype(np.int32)

    def positions(self, slots: IntArray) -> IntArray:  # [n]
        return self._positions[slots]

    def context(self, segment: Segment, size: int) -> NDArray[np.bool_]:  # [size]
        """Return the slots that a block below the segment's committed tokens sees."""
        seen = np.zeros(size, dtype=np.bool_)
        slots = _committed(segment)
        seen[slots[self._injected[slots]]] = True
        return seen


def _committed(segment: Segment) -> NDArray[np.intp]:
    """Slots of the tokens above the segment's first picked node, those in the segment included."""
    return np.concatenate(
        [np.flatnonzero(segment.context.all(0)), segment.slots[: segment.pick[0]]]
    )


class BlockHeadModel:
    """A head and its cache: `rows` rows of `capacity` slots. Its sequences are FeatureSequence."""

    masks = branches = True

    def __init__(self, head: BlockHead, *, rows: int, capacity: int, max_nodes: int) -> None:
        self.rows, self.capacity, self.max_nodes = rows, capacity, max_nodes
        self.device, self.dtype = head.fc.weight.device, head.fc.weight.dtype
        self._head = head
        self._cache = empty_cache(head.config.layer, rows, capacity, self.dtype, self.device)
        self._rows = [_Row(capacity) for _ in range(rows)]

    @property
    def block_masks(self) -> Masks:
        """The masks of its calls: one for each proposal but the root's own."""
        config = self._head.config
        return Masks(config.mask, config.proposals - 1, below_root=True)

    @torch.no_grad()
    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        check_rows(segments)
        self._inject(segments)
        size = max(segment.context.shape[1] for segment in segments)
        size = max(size, *(int(segment.slots.max()) + 1 for segment in segments))
        roots = [int(segment.pick[0]) for segment in segments]
        context = np.stack([self._rows[one.row].context(one, size) for one in segments])
        states = self._head(
            self._tensor([one.tokens[root] for one, root in zip(segments, roots, strict=True)]),
            self._tensor([segment.row for segment in segments]),
            self._tensor([one.positions[root] for one, root in zip(segments, roots, strict=True)]),
            torch.from_numpy(context[:, None]).to(self.device),
            self._cache,
        )
        picks = max(len(segment.pick) for segment in segments)
        states = states[:, np.minimum(np.arange(picks), states.shape[1] - 1)]
        positions = np.stack([np.resize(one.positions[one.pick], picks) for one in segments])
        return rank_at(self._head.logits(states), self._tensor(positions) + 1, segments, k)

    @torch.no_grad()
    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        """Compute keys of a prompt's tokens. A head chooses nothing."""
        self._inject(segments)
        return [Chosen(np.zeros(len(segment.pick), dtype=np.int32)) for segment in segments]

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return rows, self._head.config.block

    def copy_row(self, source: int, target: int, slots: int) -> None:
        raise NotImplementedError("a head's rows are not copied")

    def _inject(self, segments: Sequence[Segment]) -> None:
        """Write the keys and values of tokens whose features have become known."""
        for segment in segments:
            row = self._rows[segment.row]
            slots = row.inject(segment)
            if not len(slots):
                continue
            positions = row.positions(slots)
            features = segment.beside.at(positions).to(self.device, self.dtype)[None]
            new = self._head.inject(features, self._tensor(positions)[None])
            write_slots(self._cache, self._tensor([segment.row]), self._tensor(slots)[None], new)

    def _tensor(self, values: Sequence[int] | NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.int32)).to(self.device)
