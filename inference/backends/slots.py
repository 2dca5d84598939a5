"""KV slots of one row: which slot holds the key of which position, and which are committed.

A key is stored with its rotary position applied, so it may lie in any slot. Accepting a node marks
its slot and rejecting it frees the slot; keys never move. New nodes take the lowest free slots, so
the high-water mark stays at the live tokens plus the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from inference.errors import LimitExceeded
from inference.tree.token_tree import IntArray

FREE = -1


class Slots:
    """`capacity` slots, each of which is free, provisional (a tree's node) or committed.

    positions: [capacity] position that a slot holds or held last, or FREE.
    committed: [capacity]
    high_water: one past the highest slot in use.
    """

    def __init__(self, capacity: int) -> None:
        self.positions: IntArray = np.full(capacity, FREE, dtype=np.int32)
        self.committed: NDArray[np.bool_] = np.zeros(capacity, dtype=np.bool_)
        self.high_water = 0
        self._holes: list[int] = []  # free slots below high_water, ascending
        self._provisional: set[int] = set()

    @property
    def used(self) -> int:
        """Slots that are not free."""
        return self.high_water - len(self._holes)

    def take(self, positions: IntArray) -> IntArray:
        """Take the lowest free slots for these positions, provisionally; returns the slots.

        positions: [n].  The result is [n], too. Raises LimitExceeded when too few are free.
        """
        needed, holes, high = len(positions), self._holes, self.high_water
        fresh = max(needed - len(holes), 0)
        if high + fresh > len(self.positions):
            raise LimitExceeded(
                f"the row is full: {needed} slots needed, "
                f"{len(holes) + len(self.positions) - high} of {len(self.positions)} free"
            )
        taken = [*holes[:needed], *range(high, high + fresh)]
        del holes[:needed]
        self.high_water = high + fresh
        before = len(self._provisional)
        self._provisional.update(taken)
        assert len(self._provisional) == before + needed, "a slot was taken twice"
        slots = np.array(taken, dtype=np.int32)
        self.positions[slots] = positions
        return slots

    def keep(self, slots: Iterable[int]) -> None:
        """Commit provisional slots; the others stay provisional."""
        committed, provisional = self.committed, self._provisional
        for slot in slots:
            committed[slot] = True
            provisional.discard(slot)

    def commit(self, slots: Iterable[int]) -> None:
        """Commit provisional slots, and free every other provisional slot."""
        self.keep(slots)
        self._free(self._provisional)
        self._provisional = set()

    def release(self, slots: Sequence[int]) -> None:
        """Free the given provisional slots."""
        self._provisional.difference_update(slots)
        self._free(slots)

    def trim(self, length: int) -> None:
        """Free all slots with position `length` or later, and all provisional slots."""
        self.committed &= self.positions < length
        self._free_uncommitted()

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
        copy.positions[:], copy.committed[:] = self.positions, self.committed
        copy._free_uncommitted()
        return copy

    def _free(self, slots: Iterable[int]) -> None:
        holes, high = self._holes, self.high_water
        holes += slots
        holes.sort()
        while holes and holes[-1] == high - 1:
            holes.pop()
            high -= 1
        self.high_water = high

    def _free_uncommitted(self) -> None:
        self.high_water = self.committed.tobytes().rfind(True) + 1  # faster than in the array
        self._holes = (~self.committed[: self.high_water]).nonzero()[0].tolist()
        self._provisional = set()
