"""Time limits of a client for a target that is lost, silent, or sends heartbeats but no tokens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_SILENCE = 30.0
"""Seconds of silence after which a target counts as lost. A live target sends every second."""

MIN_SILENCE = 3.0
"""Seconds of silence after which a target counts as lost, if patience is at its minimum."""

SILENCES, MIN_PROGRESS_SECONDS = 10, 60.0
"""A target is abandoned if it sends no token for this multiple of the allowed silence, but not
before this many seconds, since a step of the target takes up to 30 s.
"""

MAX_QUEUE_SECONDS = 3600.0
"""Maximum seconds for which a session queues for a row."""


def _new_event() -> threading.Event:
    """Return a new event. The class is looked up now, since the simulator replaces it."""
    return threading.Event()


@dataclass(frozen=True)
class Patience:
    """How long to retry a lost target.

    given_up: set once no connection is needed any more, which ends the search for a first target
    """

    seconds: float = 0.0  # 0: no retry
    notice: Callable[[str], None] = lambda line: None  # receives messages about retries
    given_up: threading.Event = field(default_factory=_new_event, compare=False)

    @property
    def silence(self) -> float:
        """Seconds of silence after which a target counts as lost: half of the patience; the other
        half is for the search.
        """
        if not self.seconds:
            return MAX_SILENCE
        return min(max(self.seconds / 2, MIN_SILENCE), MAX_SILENCE)

    @property
    def progress(self) -> float:
        """Seconds without a token after which a target that owes a token is abandoned."""
        return max(SILENCES * self.silence, MIN_PROGRESS_SECONDS)


class ProgressClock:
    """Measures how long a target has sent no message, and how long it has owed a token. A heartbeat
    resets the first time only.

    stalled: whether a target was abandoned and no token was received since
    evicted: whether the target reported that the session waits for another row
    """

    def __init__(self, patience: Patience, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience, self._clock = patience, clock
        self.stalled, self.evicted, self._since = False, False, clock()

    def restart(self) -> None:
        """Restart the clock: a token was received."""
        self.stalled, self._since = False, self._clock()

    def note_opened(self) -> None:
        """Record that the session got a row. The target now has at least the allowed silence."""
        self.evicted = False
        self._since = max(self._since, self._latest(self._patience.progress))

    def advance(self, last_message_at: float, *, owes_token: bool, opened: bool) -> str:
        """Check the time limits. Return the reason to leave the target, or an empty string.

        last_message_at: when the target's latest message arrived, by the clock
        owes_token: whether the target has everything that it needs to generate a token
        opened: whether the session has had a row; otherwise it queues for one
        """
        if not owes_token:
            self._since = self._clock()
        if self._clock() - last_message_at > self._patience.silence:
            return f"has sent nothing for {self._patience.silence:.0f} s"
        limit = self._patience.progress if opened and not self.evicted else MAX_QUEUE_SECONDS
        if self._clock() - self._since <= limit:
            return ""
        self.stalled, self._since = True, self._latest(limit)
        return f"has generated no token for {limit:.0f} s"

    def _latest(self, limit: float) -> float:
        """Return a start time from which `limit` is exceeded after one more allowed silence."""
        return self._clock() - limit + self._patience.silence
