"""Where the target is while nothing is heard of it, told from when its last tokens came.

The target makes one forward after the other. A node that is there when a forward starts is walked
over; else that forward makes the token itself, and the node has come too late. Pure: no clock is
read.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TypeAlias

from inference.proposer import Notice

FORGETTING = 0.2
"""Weight of the latest forward in what one takes."""

CROSSINGS = 50
"""Latest messages among which the quickest tells the round trip; what was known beforehand counts
as one. A round trip that is believed to be longer than it is holds back nodes that would be there
in time; one that is believed to be shorter costs some bytes.
"""

SPARE = 0.05
"""Part of a forward by which a node may seem late and is sent: tokens are heard of only after the
call of the draft that is under way.
"""

Walk: TypeAlias = tuple[int, bool]
"""The forward that comes to a node's position if its path is right, counted from the next one, and
whether it makes the token there itself.
"""

AT_ROOT: Walk = (-1, True)


class Timetable:
    """forward: seconds of one.  round_trip: seconds, the target's own work apart.

    Both are what was known beforehand until something is heard. A message that a forward knew of
    was on its way no longer than from its sending to that forward's beginning, so that the shortest
    such time is the round trip, and a little waiting.
    """

    def __init__(self, forward: float, round_trip: float) -> None:
        self.forward, self.round_trip = forward, round_trip
        self._starts = math.inf  # nothing is late before the target began
        self._sent: deque[tuple[int, float]] = deque()  # numbers below this one were sent by then
        self._waits = deque([round_trip] if round_trip else [], maxlen=CROSSINGS)

    def sent(self, number: int, now: float) -> None:
        """Nodes up to this number are on their way."""
        self._sent.append((number + 1, now))

    def forget(self) -> None:
        """Numbers start afresh."""
        self._sent.clear()

    def heard(self, notice: Notice) -> None:
        """Tokens came: the next forward starts when they left."""
        weight = FORGETTING if self.forward else 1.0
        self.forward += weight * (notice.model_seconds - self.forward)
        newest = None
        while self._sent and self._sent[0][0] <= notice.known:
            newest = self._sent.popleft()[1]
        if newest is not None:
            self._waits.append(max(notice.at - notice.model_seconds - newest, 0.0))
            self.round_trip = min(self._waits)
        self._starts = notice.at - self.round_trip / 2

    def arrival(self, now: float) -> float:
        """When what is sent now is at the target."""
        return now + self.round_trip / 2

    def step(self, above: Walk, arrives: float) -> Walk:
        """Of a node that arrives then, below one of this walk."""
        forward = above[0] + above[1]
        return forward, arrives > self._starts + (forward + SPARE) * self.forward
