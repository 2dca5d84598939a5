"""How much a key may send: a bucket that fills with time, looked at before anything is done."""

from __future__ import annotations

import time
from collections.abc import Callable

NODES_PER_SECOND, BYTES_PER_SECOND, MESSAGES_PER_SECOND = 8_000, 2**18, 1_000
"""Of each session that a key has. A quick draft sends some 2,000 nodes a second."""

BURST_SECONDS = 1.0
"""What was not sent before may be sent at once, up to this."""


class Allowance:
    """Of one key, for all of its streams. Called on the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._at, self._owed = clock, clock(), 0.0

    def charge(self, nodes: float, size: int, share: float) -> float:
        """Seconds by which a message of so many nodes and bytes comes too early; it counts if that
        is 0. share: times what a session may send.
        """
        now = self._clock()
        self._owed = max(self._owed - (now - self._at) * share, 0.0)
        self._at = now
        cost = max(nodes / NODES_PER_SECOND, size / BYTES_PER_SECOND, 1 / MESSAGES_PER_SECOND)
        early = self._owed + cost - BURST_SECONDS * max(share, cost)
        if early > 0:
            return early / share
        self._owed += cost
        return 0.0
