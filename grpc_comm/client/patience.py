"""Patience of a client with a target that is lost, silent, or talks without making tokens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from grpc_comm.client.wire_session import LONGEST_SILENCE

SHORTEST_SILENCE = 3.0
"""Seconds of silence after which a target counts as lost, at the least patience."""

SILENCES, LEAST_PROGRESS = 10, 60.0
"""Times as long as a target may be silent it may make no token, and the least of these seconds. A
target's step takes 30 s at most.
"""

LONGEST_LINE = 3600.0
"""Seconds that a session stands in line for a row at most."""


def _new_event() -> threading.Event:
    """Looked up when it is called: the simulator replaces threading.Event."""
    return threading.Event()


@dataclass(frozen=True)
class Patience:
    """Time for which a lost target is looked for.

    given_up: set by whoever wants no connection any more; a first search ends then
    """

    seconds: float = 0.0  # 0: it is not looked for
    notice: Callable[[str], None] = lambda line: None  # is told what happens meanwhile
    given_up: threading.Event = field(default_factory=_new_event, compare=False)

    @property
    def silence(self) -> float:
        """Seconds of silence after which a target is lost: half of all, to leave half for the
        search.
        """
        if not self.seconds:
            return LONGEST_SILENCE
        return min(max(self.seconds / 2, SHORTEST_SILENCE), LONGEST_SILENCE)

    @property
    def progress(self) -> float:
        """Seconds without a token after which a target that owes one is left."""
        return max(SILENCES * self.silence, LEAST_PROGRESS)


class ProgressClock:
    """Seconds since a target that owes tokens has made one. Signs of life do not count.

    stalled: a target was left, and no token has come since
    evicted: the target says that the session waits for another row
    """

    def __init__(self, patience: Patience, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience, self._clock = patience, clock
        self.stalled, self.evicted, self._since = False, False, clock()

    def restart(self) -> None:
        """A token came."""
        self.stalled, self._since = False, self._clock()

    def note_opened(self) -> None:
        """The session is out of the line: the target has its time of silence, at least."""
        self.evicted = False
        self._since = max(self._since, self._latest(self._patience.progress))

    def advance(self, *, owes_token: bool, opened: bool) -> float:
        """Let time pass. Return the seconds without a token for which to leave the target, or 0.

        owes_token: whether it has what it needs to make one
        opened: whether the session has had a row; before, it stands in line for one
        """
        if not owes_token:
            self._since = self._clock()
        most = self._patience.progress if opened and not self.evicted else LONGEST_LINE
        if self._clock() - self._since <= most:
            return 0.0
        self.stalled, self._since = True, self._latest(most)
        return most

    def _latest(self, most: float) -> float:
        """The time to take for the last token's, which leaves the target its time of silence."""
        return self._clock() - most + self._patience.silence
