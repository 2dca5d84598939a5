"""The KV slots of a row: the position stored in each slot, and which slots are committed.

Keys are stored with their rotary position applied, so any slot can hold any position. Accepting a
node commits its slot, rejecting a node frees its slot, and keys never move. New nodes take the
lowest free slots, so few unused slots are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from inference.errors import LimitExceeded
from inference.tree.token_tree import IntArray

FREE = -1


class Slots:
    """`capacity` slots, each of which is free, provisional (for a node of a tree) or committed.

    positions: [capacity] current or last position of each slot, or FREE
    committed: [capacity] whether the slot is committed
    high_water: number of the highest slot in use, plus one
    """

    def __init__(self, capacity: int) -> None:
        self.positions: IntArray = np.full(capacity, FREE, dtype=np.int32)
        self.committed: NDArray[np.bool_] = np.zeros(capacity, dtype=np.bool_)
        self.high_water = 0
        self._holes: list[int] = []  # free slots below high_water, ascending
        self._provisional: set[int] = set()

    @property
    def used(self) -> int:
        """The number of slots in use."""
        return self.high_water - len(self._holes)

    def take(self, positions: IntArray) -> IntArray:
        """Reserve the lowest free slots provisionally for positions [n]. Returns the slots [n].

        Raises LimitExceeded if too few are free.
        """
        needed, holes, high = len(positions), self._holes, self.high_water
        fresh = max(needed - len(holes), 0)
        if high + fresh > len(self.positions):
            raise LimitExceeded(
                f"the row is full: {needed} slots needed, "
                f"{len(holes) + len(self.positions) - high} of {len(self.positions)} free"
            )
        chosen = [*holes[:needed], *range(high, high + fresh)]
        del holes[:needed]
        self.high_water = high + fresh
        before = len(self._provisional)
        self._provisional.update(chosen)
        assert len(self._provisional) == before + needed, "a slot was taken twice"
        slots = np.array(chosen, dtype=np.int32)
        assert not self.committed[slots].any(), "a slot in use was taken"
        self.positions[slots] = positions
        return slots

    def keep(self, slots: Iterable[int]) -> None:
        """Commit some provisional slots; the others stay provisional."""
        committed, provisional = self.committed, self._provisional
        for slot in slots:
            committed[slot] = True
            provisional.discard(slot)

    def commit(self, slots: Iterable[int]) -> None:
        """Commit some provisional slots, and free all other provisional slots."""
        self.keep(slots)
        self._free(self._provisional)
        self._provisional = set()

    def release(self, slots: Sequence[int]) -> None:
        """Free some provisional slots."""
        self._provisional.difference_update(slots)
        self._free(slots)

    def trim(self, length: int) -> None:
        """Free all slots with position `length` or later, and all provisional slots."""
        self.committed &= self.positions < length
        self._free_uncommitted()

    def at(self, positions: IntArray) -> IntArray:
        """Return the slots [n] of committed tokens at positions [n].

        All positions below the highest committed position must be committed.
        """
        committed = self.committed.nonzero()[0]
        slots = np.empty(len(committed), dtype=np.int32)
        slots[self.positions[committed]] = committed
        return slots[positions]

    def committed_copy(self) -> Slots:
        """Return a copy in which provisional slots are free."""
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
        self.high_water = self.committed.tobytes().rfind(True) + 1  # faster than numpy
        self._holes = (~self.committed[: self.high_water]).nonzero()[0].tolist()
        self._provisional = set()
