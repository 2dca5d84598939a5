"""KV slots of one row: which slot holds the key of which position, and which are committed.

A key is stored with its rotary position applied, so it may lie in any slot. Accepting a node marks
its slot and rejecting it frees the slot; keys never move. New nodes take the lowest free slots, so
the high-water mark stays at the live tokens plus the tree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inference.errors import LimitExceeded
from inference.tree import IntArray

FREE = -1


class Slots:
    """`capacity` slots, each of which is free, provisional (a tree's node) or committed.

    high_water: one past the highest slot in use.
    """

    def __init__(self, capacity: int) -> None:
        self.positions: IntArray = np.full(
            capacity, FREE, dtype=np.int32
        )  # [capacity] position held, or FREE
        self.committed: NDArray[np.bool_] = np.zeros(capacity, dtype=np.bool_)  # [capacity]
        self.high_water = 0

    def take(self, positions: IntArray) -> IntArray:
        """Take the lowest free slots for these positions, provisionally; returns the slots.

        positions: [n].  The result is [n], too. Raises LimitExceeded when too few are free.
        """
        within = self.positions[
            : self.high_water + len(positions)
        ]  # this part has enough free slots, unless the row ends in it
        free: NDArray[np.intp] = (within == FREE).nonzero()[0][: len(positions)]
        if len(free) < len(positions):
            raise LimitExceeded(
                f"the row is full: {len(positions)} slots needed, {len(free)} of "
                f"{len(self.positions)} free"
            )
        self.positions[free] = positions
        self.high_water = max(self.high_water, int(free[-1]) + 1 if free.size else 0)
        return free.astype(np.int32)

    def commit(self, slots: IntArray) -> None:
        """Commit `slots`, and free every other provisional slot."""
        self.committed[slots] = True
        self._free_provisional()

    def release(self, slots: Sequence[int]) -> None:
        """Free the given provisional slots."""
        if slots:
            self.positions[slots] = FREE
            used = self.positions[: self.high_water] != FREE
            self.high_water = _length(used)

    def trim(self, length: int) -> None:
        """Free all slots with position `length` or later, and all provisional slots."""
        self.committed &= self.positions < length
        self._free_provisional()

    def at(self, positions: IntArray) -> IntArray:
        """Return the slots of the committed tokens at these positions [n]. The result is [n], too.

        All positions below the highest committed one are committed.
        """
        held = self.committed.nonzero()[0]
        slots = np.empty(len(held), dtype=np.int32)
        slots[self.positions[held]] = held
        return slots[positions]

    def committed_copy(self) -> Slots:
        """A copy with the committed slots; provisional slots are free in it."""
        copy = Slots(len(self.positions))
        copy.positions[:], copy.committed[:], copy.high_water = (
            self.positions,
            self.committed,
            self.high_water,
        )
        copy._free_provisional()
        return copy

    def _free_provisional(self) -> None:
        """Free all provisional slots."""
        used = self.committed[: self.high_water]
        np.putmask(self.positions[: self.high_water], ~used, FREE)
        self.high_water = _length(used)


def _length(used: NDArray[np.bool_]) -> int:
    """One past the last slot in use. A search in bytes is faster than one in the array."""
    return used.tobytes().rfind(True) + 1
