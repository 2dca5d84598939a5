"""Capacity of a loaded model: concurrent texts, and tokens of each."""

from __future__ import annotations

from typing import NamedTuple


class Capacity(NamedTuple):
    """Capacity of a loaded model: concurrent texts, and tokens of each."""

    rows: int
    sequence_length: int  # prompt and output together
    spare: int  # slots a row beyond the sequence, which hold trees
    max_nodes: int  # per call
    ids: int | None = None  # only ids below this are proposed; None: all of the tokenizer

    def vocabulary(self, vocabulary: int) -> int:
        """Number of a tokenizer's ids that get probabilities."""
        return vocabulary if self.ids is None else min(vocabulary, self.ids)

    @property
    def slots(self) -> int:
        """Slots of a row."""
        return self.sequence_length + self.spare
