"""Patience of a client with a target that is lost, silent, or sends heartbeats but no tokens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_SILENCE = 30.0
"""Seconds of silence after which a target counts as lost. A live one speaks every second."""

MIN_SILENCE = 3.0
"""Seconds of silence after which a target counts as lost, at the minimum patience."""

SILENCES, MIN_PROGRESS_SECONDS = 10, 60.0
"""A target may send no token for this many times the allowed silence, but at least for so many
seconds. A target's step takes up to 30 s.
"""

MAX_QUEUE_SECONDS = 3600.0
"""Maximum seconds for which a session queues for a row."""


def _new_event() -> threading.Event:
    """Looked up when it is called: the simulator replaces threading.Event."""
    return threading.Event()


@dataclass(frozen=True)
class Patience:
    """Time for which to retry a lost target.

    given_up: set once no connection is needed any more; a first search ends then
    """

    seconds: float = 0.0  # 0: no retry
    notice: Callable[[str], None] = lambda line: None  # gets messages about the retries
    given_up: threading.Event = field(default_factory=_new_event, compare=False)

    @property
    def silence(self) -> float:
        """Seconds of silence after which a target is lost: half of all, which leaves half for the
        search.
        """
        if not self.seconds:
            return MAX_SILENCE
        return min(max(self.seconds / 2, MIN_SILENCE), MAX_SILENCE)

    @property
    def progress(self) -> float:
        """Seconds without a token after which a target that owes one is abandoned."""
        return max(SILENCES * self.silence, MIN_PROGRESS_SECONDS)


class ProgressClock:
    """Measures how long a target has been silent, and how long it has owed a token. A heartbeat
    ends the silence only.

    stalled: a target was abandoned, and no token was received since
    evicted: the target reports that the session waits for another row
    """

    def __init__(self, patience: Patience, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience, self._clock = patience, clock
        self.stalled, self.evicted, self._since = False, False, clock()

    def restart(self) -> None:
        """Restart the clock: a token was received."""
        self.stalled, self._since = False, self._clock()

    def note_opened(self) -> None:
        """The session has left the queue: the target gets at least its allowed silence."""
        self.evicted = False
        self._since = max(self._since, self._latest(self._patience.progress))

    def advance(self, last_message_at: float, *, owes_token: bool, opened: bool) -> str:
        """Let time pass. Return why to leave the target, or an empty text.

        last_message_at: when its latest message arrived, by the clock
        owes_token: whether it has all that it needs to generate a token
        opened: whether the session has had a row; before, it queues for one
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
        """The assumed time of the last token, which leaves the target its allowed silence."""
        return self._clock() - limit + self._patience.silence
