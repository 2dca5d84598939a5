"""Slots of one row: none is lost, doubled or taken higher than needed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from inference.backends.sequence import Slots
from inference.errors import LimitExceeded
from tests.support.tiers import examples

CAPACITY = 24


def positions(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


class SlotsAgainstADict(RuleBasedStateMachine):
    """Dicts slot -> position, of what is provisional and what is committed, say the same."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots(CAPACITY)
        self.provisional: dict[int, int] = {}
        self.committed: dict[int, int] = {}
        self.highest = 0  # the most slots ever in use at once

    @rule(size=st.integers(0, 9))
    def take(self, size: int) -> None:
        free = [
            slot
            for slot in range(CAPACITY)
            if slot not in self.provisional and slot not in self.committed
        ]
        first = len(self.committed)
        wanted = positions(*range(first, first + size))
        if size > len(free):
            with pytest.raises(LimitExceeded, match="row is full"):
                self.slots.take(wanted)
            return
        assert self.slots.take(wanted).tolist() == free[:size]
        self.provisional |= dict(zip(free[:size], wanted.tolist(), strict=True))
        self.highest = max(self.highest, len(self.provisional) + len(self.committed))

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        kept = (
            data.draw(st.lists(st.sampled_from(sorted(self.provisional)), unique=True))
            if self.provisional
            else []
        )
        self.slots.commit(kept)
        self.committed |= {slot: self.provisional[slot] for slot in kept}
        self.provisional = {}

    @rule(data=st.data())
    def keep_and_release(self, data: st.DataObject) -> None:
        if self.provisional:
            some = st.lists(st.sampled_from(sorted(self.provisional)), unique=True)
            kept, gone = data.draw(some), data.draw(some)
            gone = [slot for slot in gone if slot not in kept]
            self.slots.keep(kept)
            self.slots.release(gone)
            self.committed |= {slot: self.provisional.pop(slot) for slot in kept}
            for slot in gone:
                del self.provisional[slot]

    @rule(length=st.integers(0, CAPACITY))
    def trim(self, length: int) -> None:
        self.slots.trim(length)
        self.committed = {
            slot: position for slot, position in self.committed.items() if position < length
        }
        self.provisional = {}

    @invariant()
    def it_holds_what_the_dicts_hold(self) -> None:
        held = self.provisional | self.committed
        assert {slot: self.slots.positions.item(slot) for slot in held} == held
        assert np.flatnonzero(self.slots.committed).tolist() == sorted(self.committed)
        assert self.slots.high_water == max(held, default=-1) + 1

    @invariant()
    def the_high_water_mark_never_passes_the_most_slots_in_use_at_once(self) -> None:
        assert self.slots.high_water <= self.highest


TestSlotsAgainstADict = SlotsAgainstADict.TestCase
TestSlotsAgainstADict.settings = settings(max_examples=examples(60), stateful_step_count=20)
