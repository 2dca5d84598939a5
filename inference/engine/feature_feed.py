"""Features of sessions on their way to clients that asked for them.

They are read from the session's row between forwards, so nothing is kept of what a client may
ask for later: a client that lacks some is sent them again from the row. What finds no room, or
comes faster than was asked for, is left out, the oldest first.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.backends import FeatureModel
from inference.backends.sequence import ModelSequence
from inference.errors import Mismatch
from inference.features import FeatureBlock, FeatureForm, FeatureRequest, to_int8

MOST_WAITING = 2**20
"""Bytes of a session's features that wait for its stream at most."""

MESSAGE_BYTES = 2**14
"""Bytes of features in one message, unless one position is larger: tokens wait that long at
most.
"""

BURST_SECONDS = 1.0
"""Seconds whose bytes may be sent at once."""


class FeatureOffer(NamedTuple):
    """The features that a target gives to clients.

    bytes_per_second: that a session may have at most
    """

    model: FeatureModel
    form: FeatureForm
    bytes_per_second: int

    def feed(self, asked: FeatureRequest, now: float) -> FeatureFeed:
        """Raises Mismatch for other features than these. now: seconds of the engine's clock."""
        if asked.form != self.form:
            raise Mismatch(f"this target gives {self.form}: the head reads {asked.form}")
        rate = min(asked.bytes_per_second, self.bytes_per_second)
        return FeatureFeed(self, asked.first, rate, now)


class FeatureFeed:
    """Features of one session: read on the thread of the forwards, taken by its stream. Guarded by
    the engine's lock.
    """

    def __init__(self, offer: FeatureOffer, first: int, rate: int, now: float) -> None:
        self._offer, self._next, self._rate = offer, first, rate
        self._room = max(MOST_WAITING // offer.form.position_bytes, 1)
        self._most = max(rate * BURST_SECONDS, float(offer.form.position_bytes))
        self._allowance, self._refilled = self._most, now  # bytes, seconds
        self._waiting = deque[tuple[NDArray[np.float32], NDArray[np.int8]]](maxlen=self._room)

    def collect(self, sequence: ModelSequence) -> bool:
        """Read what the row has beyond what was read before; whether there was any."""
        start = max(self._next, sequence.cached - self._room)
        if start >= sequence.cached:
            return False
        if start > self._next:
            self._waiting.clear()
        slots = sequence.slots.at(np.arange(start, sequence.cached, dtype=np.int32))
        states = self._offer.model.features(sequence.row, slots).float().cpu().numpy()
        block = to_int8(start, states.reshape(len(slots), len(self._offer.form.layers), -1))
        self._waiting.extend(zip(block.scales, block.values, strict=True))
        self._next = sequence.cached
        return True

    def take(self, below: int, now: float) -> FeatureBlock | None:
        """Return what may be sent now of positions `below`; None for nothing."""
        earned = (now - self._refilled) * self._rate
        self._allowance, self._refilled = min(self._allowance + earned, self._most), now
        each, position = self._offer.form.position_bytes, self._next - len(self._waiting)
        count = min(
            len(self._waiting),
            below - position,
            int(self._allowance // each),
            max(MESSAGE_BYTES // each, 1),
        )
        if count < 1:
            return None
        self._allowance -= count * each
        taken = [self._waiting.popleft() for _ in range(count)]
        scales, values = (np.stack(part) for part in zip(*taken, strict=True))
        return FeatureBlock(position, scales, values)
