"""Capacity of a loaded model: texts at once, and tokens of each."""

from __future__ import annotations

from typing import NamedTuple


class Capacity(NamedTuple):
    """Room of a loaded model: texts, and tokens of each."""

    rows: int
    sequence_length: int  # prompt and output together
    spare: int  # slots a row beyond the sequence, which hold trees
    max_nodes: int  # of one call

    @property
    def slots(self) -> int:
        """Slots of a row."""
        return self.sequence_length + self.spare
