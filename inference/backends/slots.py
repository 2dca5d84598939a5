"""KV slots of one row: which slot holds the key of which position, and which are committed.

A key is stored with its rotary position applied, so it may lie in any slot: accepting marks slots,
rejecting frees them, nothing ever moves. New nodes take the lowest free slots, which keeps the
high-water mark at live tokens + tree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inference.errors import LimitExceeded
from inference.tree import IntArray

FREE = -1
NONE: IntArray = np.empty(0, dtype=np.int32)


class Slots:
    """`capacity` slots; each is free, provisional (a tree's node) or committed. high_water: one
    past the highest slot in use.
    """

    def __init__(self, capacity: int) -> None:
        self.positions: IntArray = np.full(
            capacity, FREE, dtype=np.int32
        )  # [capacity] position held, or FREE
        self.committed: NDArray[np.bool_] = np.zeros(capacity, dtype=np.bool_)  # [capacity]
        self.high_water = 0

    def take(self, positions: IntArray) -> IntArray:
        """The lowest free slots, now provisionally holding these positions; raises LimitExceeded
        when there are too few.
        """
        within = self.positions[
            : self.high_water + len(positions)
        ]  # enough of them are free, unless the row ends here
        free: NDArray[np.intp] = (within == FREE).nonzero()[0][: len(positions)]
        if len(free) < len(positions):
            raise LimitExceeded(
                f"the row is full: {len(positions)} slots needed, {len(free)} of "
                f"{len(self.positions)} free"
            )
        self.positions[free] = positions
        self.high_water = max(self.high_water, int(free[-1]) + 1 if free.size else 0)
        return free.astype(np.int32)

    def commit(self, slots: IntArray, still: IntArray = NONE) -> None:
        """Commit these slots, let those of `still` be provisional, and free every other
        provisional one.
        """
        self.committed[slots] = True
        self._free_provisional(still)

    def release(self, slots: Sequence[int]) -> None:
        """Free these provisional slots."""
        if slots:
            self.positions[slots] = FREE
            used = self.positions[: self.high_water] != FREE
            self.high_water = len(used) - int(used[::-1].argmax()) if used.any() else 0

    def trim(self, length: int) -> None:
        """Free all slots at position `length` or later, and all provisional ones."""
        self.committed &= self.positions < length
        self._free_provisional()

    def committed_copy(self) -> Slots:
        """The same committed slots; provisional ones are free."""
        copy = Slots(len(self.positions))
        copy.positions[:], copy.committed[:], copy.high_water = (
            self.positions,
            self.committed,
            self.high_water,
        )
        copy._free_provisional()
        return copy

    def _free_provisional(self, still: IntArray = NONE) -> None:
        """All but those of `still`."""
        used: NDArray[np.bool_] = np.array(self.committed[: self.high_water])
        used[still] = True
        self.positions[: self.high_water][~used] = FREE
        self.high_water = len(used) - int(used[::-1].argmax()) if used.any() else 0
