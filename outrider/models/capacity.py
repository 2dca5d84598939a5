"""Capacity of a loaded model: texts at once, and tokens of each."""

from __future__ import annotations

from typing import NamedTuple


class Capacity(NamedTuple):
    """Room of a loaded model: texts, and tokens of each."""

    rows: int
    sequence_length: int  # prompt and output together
    spare: int  # slots a row beyond the sequence, which hold trees
    max_nodes: int  # of one call
    ids: int | None = None  # ids that are proposed are below this; None: all of the tokenizer

    def vocabulary(self, whole: int) -> int:
        """Number of a tokenizer's ids that the model computes chances of."""
        return whole if self.ids is None else min(whole, self.ids)

    @property
    def slots(self) -> int:
        """Slots of a row."""
        return self.sequence_length + self.spare
