"""Batches of segments: padded to int32 arrays with fixed shapes, and computed alone on failure.

A padding node is written to the junk slot, has position 0, and sees only itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from inference.backends import Segment
from inference.errors import InvalidRequest
from inference.tree.token_tree import IntArray

T = TypeVar("T")


class BatchShape(NamedTuple):
    """The padded sizes of a forward pass."""

    rows: int
    nodes: int
    picks: int
    contexts: int  # 1, or one context mask for each node
    slots: int  # cache slots that are read

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> BatchShape:
        """Return the smallest shape for these segments."""
        nodes = max(len(segment.tokens) for segment in segments)
        contexts = 1 if all(segment.context.shape[0] == 1 for segment in segments) else nodes
        picks = max(len(segment.pick) for segment in segments)
        slots = max(segment.context.shape[1] for segment in segments)
        return cls(len(segments), nodes, picks, contexts, slots)


class Batch:
    """The int32 input arrays of a forward pass. Idle rows write to the junk slot of row 0."""

    def __init__(self, shape: BatchShape, junk: int) -> None:
        rows, nodes = shape.rows, shape.nodes
        self.rows: IntArray = np.zeros(rows, dtype=np.int32)
        self.tokens: IntArray = np.zeros((rows, nodes), dtype=np.int32)
        self.slots: IntArray = np.full((rows, nodes), junk, dtype=np.int32)
        self.positions: IntArray = np.zeros((rows, nodes), dtype=np.int32)
        self.context_mask: IntArray = np.zeros((rows, shape.contexts, shape.slots), dtype=np.int32)
        self.tree_mask: IntArray = np.repeat(np.eye(nodes, dtype=np.int32)[None], rows, axis=0)
        self.pick: IntArray = np.zeros((rows, shape.picks), dtype=np.int32)

    def arrays(self) -> dict[str, IntArray]:
        """Return all arrays by name."""
        return dict(vars(self))


def check_rows(segments: Sequence[Segment]) -> None:
    """Raise InvalidRequest for two segments of the same row, as they would not see each other."""
    if len({segment.row for segment in segments}) < len(segments):
        raise InvalidRequest("one row twice in a batch")


def pad(segments: Sequence[Segment], shape: BatchShape, junk: int) -> Batch:
    """Return a Batch with the segments in its first rows, in the same order."""
    batch = Batch(shape, junk)
    for row, segment in enumerate(segments):
        n, width = len(segment.tokens), segment.context.shape[1]
        batch.rows[row] = segment.row
        batch.tokens[row, :n] = segment.tokens
        batch.slots[row, :n] = segment.slots
        batch.positions[row, :n] = segment.positions
        batch.context_mask[row, : n if shape.contexts > 1 else 1, :width] = segment.context
        batch.tree_mask[row, :n, :n] = segment.tree_mask
        batch.pick[row] = segment.pick[0]
        batch.pick[row, : len(segment.pick)] = segment.pick
    return batch


def call_each(
    compute: Callable[[Sequence[Segment]], Sequence[T]], segments: Sequence[Segment]
) -> list[T | Exception]:
    """Return the model's answer or the exception for each segment.

    If several segments fail together, each is computed alone, so that only faulty ones fail.
    """
    try:
        return list(compute(segments))
    # an error of one session must not affect other sessions
    except Exception as error:
        if len(segments) == 1:
            return [error]
    return [call_each(compute, [segment])[0] for segment in segments]
