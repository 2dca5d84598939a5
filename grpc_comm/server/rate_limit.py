"""Rate limit of a key: a token bucket, checked before a message is processed."""

from __future__ import annotations

import time
from collections.abc import Callable

NODES_PER_SECOND, BYTES_PER_SECOND, MESSAGES_PER_SECOND = 8_000, 2**18, 1_000
"""Limits per second and session of a key. A fast draft sends about 2,000 nodes per second."""

BURST_SECONDS = 1.0
"""Burst size: unused rate accumulates for up to this many seconds."""


class Allowance:
    """The token bucket of one key, shared by all streams of the key. Used on the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._at, self._owed = clock, clock(), 0.0

    def charge(self, nodes: float, size: int, share: float) -> float:
        """Return the seconds by which a message with `nodes` nodes and `size` bytes is too early.

        The message is charged only if the result is 0.

        share: the key's rate, as a multiple of the rate of one session
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
