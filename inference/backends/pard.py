"""A PARD-2 draft beside its target, in target-dependent mode, as a Model.

The target keeps its states by slot, beside its keys. A token up to the target's root is computed
with the target's states at the token before it. The states before any later token, a candidate or a
mask, are not known yet: it is computed with the last that are, those before the root.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from inference.backends import Masks, Segment
from inference.backends.batch import Shape
from inference.backends.eager import EagerModel
from inference.backends.sequence import Followed, ModelSequence
from inference.model.decoder import Decoder
from inference.model.pard import Projection


class DependentModel(EagerModel):
    """A BlockModel and Follower: a Decoder whose embeddings get a projection of the target's
    states. Its sequences are RenewedSequence.

    target: keeps the states that the projection reads, from now on
    """

    def __init__(
        self,
        decoder: Decoder,
        projection: Projection,
        target: EagerModel,
        masks: Masks,
        *,
        rows: int,
        capacity: int,
        max_nodes: int,
    ) -> None:
        super().__init__(decoder, rows=rows, capacity=capacity, max_nodes=max_nodes)
        self.masks = masks
        self._projection, self._target = projection, target
        self._followed: list[Followed | None] = [None] * rows
        target.keep_features(projection.kept)

    def follow(self, row: int, followed: Followed | None) -> None:
        self._followed[row] = followed

    def _added(self, segments: Sequence[Segment], shape: Shape) -> Tensor:  # [B, T, hidden]
        hidden = self.decoder.config.hidden_size
        size = (shape.rows, shape.nodes, hidden)
        added = torch.zeros(size, dtype=self.dtype, device=self.device)
        for row, segment in enumerate(segments):
            added[row, : len(segment.tokens)] = self._projected(segment)
        return added

    def _projected(self, segment: Segment) -> Tensor:  # [n, hidden]
        """Return what is added to each node of a segment."""
        followed = self._followed[segment.row]
        sequence = None if followed is None else followed()
        root = 0 if sequence is None else sequence.cached
        before, node = np.unique(np.minimum(segment.positions, root) - 1, return_inverse=True)
        known = before[before >= 0]  # the first token of a text has none before it
        row, slots = (0, known) if sequence is None else (sequence.row, sequence.slots_of(known))
        features = F.pad(self._target.features(row, slots), (0, 0, len(before) - len(known), 0))
        return self._projection(features)[torch.from_numpy(node).to(self.device)]


class RenewedSequence(ModelSequence):
    """A ModelSequence whose candidates are computed again when they are committed: by then the
    target's states before them are known.

    A root that was ranked as a candidate keeps its keys until the next one is committed.
    """

    def advance(self, nodes: Sequence[int], tokens: Sequence[int], gone: Sequence[int]) -> None:
        """Commit a root and tokens below it: all of them become pending."""
        super().advance([], tokens, [*nodes, *gone])
