"""A draft whose checkpoint names a mask: a Model, with what its caller has to know of the mask."""

from __future__ import annotations

from collections.abc import Sequence

from inference.backends import Masks, Model, Ranked, Segment
from inference.tree import IntArray


class MaskedModel:
    """A BlockModel over any Model that computes the mask like other tokens."""

    def __init__(self, model: Model, masks: Masks) -> None:
        self.rows, self.capacity = model.rows, model.capacity
        self.max_nodes, self.copies_rows = model.max_nodes, model.copies_rows
        self.masks = masks
        self._model = model

    def choose(self, segments: Sequence[Segment]) -> list[IntArray]:
        return self._model.choose(segments)

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        return self._model.rank(segments, k)

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return self._model.padded(rows, nodes)

    def copy_row(self, source: int, target: int, slots: int) -> None:
        self._model.copy_row(source, target, slots)
