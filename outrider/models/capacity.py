"""Capacity of a loaded model."""

from __future__ import annotations

from typing import NamedTuple


class Capacity(NamedTuple):
    """Capacity of a loaded model: concurrent sequences, and the tokens of each."""

    rows: int
    sequence_length: int  # prompt and output together
    spare: int  # further slots of each row, for trees of candidates
    max_nodes: int  # per forward pass
    ids: int | None = None  # only ids below this are proposed; None: all the tokenizer's

    def vocabulary(self, vocabulary: int) -> int:
        """Return how many of a tokenizer's ids get probabilities."""
        return vocabulary if self.ids is None else min(vocabulary, self.ids)

    @property
    def slots(self) -> int:
        """Slots of a row: its sequence and the spare ones."""
        return self.sequence_length + self.spare
