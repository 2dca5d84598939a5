"""Predicts where the target is, from when its last tokens came. Pure: no clock is read.

The target makes one forward after the other. A forward walks over nodes that have arrived when it
starts. Where none has, it makes the token itself, and a node for that position is too late.
"""

from __future__ import annotations

import math
from collections import deque

from inference.draft_tuning import TUNING
from inference.proposer import Notice


class TargetClock:
    """Start times of the target's forwards, and arrival times of messages there.

    forward: seconds of a forward
    round_trip: seconds between the two ends and back, without the target's work

    Both hold prior estimates until something is heard. A message that a forward knew of was sent at
    most that long before the forward began. The shortest such time is the round trip plus a little
    waiting. Forwards are counted from the next one, as if a node's path were right.
    """

    def __init__(self, forward: float, round_trip: float) -> None:
        self.forward, self.round_trip = forward, round_trip
        self._starts = math.inf  # nothing is late before the target began
        self._sent: deque[tuple[int, float]] = deque()  # (n, when): numbers below n were sent
        self._waits = deque([round_trip] if round_trip else [], maxlen=TUNING.crossings)

    def sent(self, number: int, now: float) -> None:
        """Record that nodes up to this number were sent at `now` seconds."""
        self._sent.append((number + 1, now))

    def forget(self) -> None:
        """Forget all numbers: they start again."""
        self._sent.clear()

    def hear(self, notice: Notice) -> None:
        """Update the estimates from a message. The next forward starts when its tokens left the
        target.
        """
        weight = TUNING.forward_forgetting if self.forward else 1.0
        self.forward += weight * (notice.model_seconds - self.forward)
        newest = None
        while self._sent and self._sent[0][0] <= notice.known:
            newest = self._sent.popleft()[1]
        if newest is not None:
            self._waits.append(max(notice.at - notice.model_seconds - newest, 0.0))
            self.round_trip = min(self._waits)
        self._starts = notice.at - self.round_trip / 2

    def arrival(self, now: float) -> float:
        """Return when a message sent now arrives at the target, in seconds."""
        return now + self.round_trip / 2

    def is_late(self, forward: int, arrives: float) -> bool:
        """Tell whether a node that this forward reaches arrives after it: the forward makes the
        token itself.
        """
        return arrives > self._starts + (forward + TUNING.spare) * self.forward
