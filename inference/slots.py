"""KV slots of one row: which slot holds the key of which position, and which are committed.

A key is stored with its rotary position applied, so it may lie in any slot: accepting marks slots, rejecting frees them,
nothing ever moves. New nodes take the lowest free slots, which keeps the high-water mark at live tokens + tree.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inference.errors import LimitExceeded
from inference.tree import IntArray

FREE = -1


class Slots:
    """`capacity` slots; each is free, provisional (a tree's node) or committed."""

    def __init__(self, capacity: int) -> None:
        self.positions: IntArray = np.full(capacity, FREE, dtype=np.int32)  # [capacity] position held, or FREE
        self.committed: NDArray[np.bool_] = np.zeros(capacity, dtype=np.bool_)  # [capacity]

    def take(self, positions: IntArray) -> IntArray:
        """The lowest free slots, now provisionally holding these positions; raises LimitExceeded when there are too few."""
        free = np.flatnonzero(self.positions == FREE)[: len(positions)]
        if len(free) < len(positions):
            raise LimitExceeded(f"the row is full: {len(positions)} slots needed, {len(free)} of {len(self.positions)} free")
        self.positions[free] = positions
        return free.astype(np.int32)

    def commit(self, slots: IntArray) -> None:
        """Keep these slots and free every other provisional one."""
        self.committed[slots] = True
        self.positions[~self.committed] = FREE

    def trim(self, length: int) -> None:
        """Free all slots at position `length` or later, and all provisional ones."""
        self.committed &= self.positions < length
        self.positions[~self.committed] = FREE

    def committed_copy(self) -> Slots:
        """The same committed slots; provisional ones are free."""
        copy = Slots(len(self.positions))
        copy.committed[:] = self.committed
        copy.positions[self.committed] = self.positions[self.committed]
        return copy

    @property
    def high_water(self) -> int:
        """One past the highest slot in use."""
        used = np.flatnonzero(self.positions != FREE)
        return int(used[-1]) + 1 if used.size else 0
