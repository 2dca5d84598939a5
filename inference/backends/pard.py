"""A PARD-2 draft in target-dependent mode, as a Model: it reads what its target has computed.

A token is computed with the target's states at the token before it. Those before a candidate or a
mask are not known yet: it is computed with the last that are, those before the root. A segment says
what is known (`Led`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inference.backends import Masks, Segment
from inference.backends.batch import Shape
from inference.backends.eager import EagerModel
from inference.backends.led_sequence import LedSequence
from inference.model.decoder import Decoder
from inference.model.pard import Projection


class DependentModel(EagerModel):
    """A BlockModel: a Decoder whose embeddings get a projection of the target's states. Its
    sequences are RenewedSequence.
    """

    def __init__(
        self,
        decoder: Decoder,
        projection: Projection,
        masks: Masks,
        *,
        rows: int,
        capacity: int,
        max_nodes: int,
    ) -> None:
        super().__init__(decoder, rows=rows, capacity=capacity, max_nodes=max_nodes)
        self.masks, self._projection = masks, projection

    def _added(self, segments: Sequence[Segment], shape: Shape) -> Tensor:  # [B, T, hidden]
        size = (shape.rows, shape.nodes, self.decoder.config.hidden_size)
        added = torch.zeros(size, dtype=self.dtype, device=self.device)
        for row, segment in enumerate(segments):
            added[row, : len(segment.tokens)] = self._projected(segment)
        return added

    def _projected(self, segment: Segment) -> Tensor:  # [n, hidden]
        """Return what is added to each node of a segment."""
        known = range(0) if segment.led is None else segment.led.known
        before, node = np.unique(np.minimum(segment.positions, known.stop) - 1, return_inverse=True)
        features = self._projection.no_features(len(before))  # as before the first token of a text
        there = before >= known.start
        if segment.led is not None and there.any():
            features[torch.from_numpy(there)] = segment.led.features.at(before[there]).to(features)
        return self._projection(features)[torch.from_numpy(node).to(self.device)]


class RenewedSequence(LedSequence):
    """A LedSequence whose candidates are computed again when they are committed: by then the
    target's states before them are known.

    A root that was ranked as a candidate keeps its keys until the next one is committed.
    """

    def advance(self, nodes: Sequence[int], tokens: Sequence[int], gone: Sequence[int]) -> None:
        """Commit a root and tokens below it: all of them become pending."""
        super().advance([], tokens, [*nodes, *gone])

    def _leave_out(self, first: int) -> None:
        """Leave no token out: before the first feature a token is computed with zeros."""
