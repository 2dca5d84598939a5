"""Checks whether a target on this host is idle: `python -m deploy.host.idle MINUTES PORT FILE`.

Exit code 0 means that there was no session for MINUTES, 1 that there was one. A target that does
not answer (loading, or failed) has no sessions. The last state is stored in FILE.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from inference.command import FAILED, run_command
from inference.files.writing import write_whole

_ANSWER_SECONDS = 10.0


class Activity(NamedTuple):
    """The number of a target's sessions at a point in time."""

    open: int  # sessions
    ended: int  # sessions, since the target started


class Idleness(NamedTuple):
    """The time since which no session is open, and the number that had ended by then."""

    since: float  # seconds of a clock that starts at boot
    ended: int


def idleness(before: Idleness | None, activity: Activity | None, now: float) -> Idleness:
    """Return since when the target is idle. activity: now; None if the target does not answer"""
    if before is None:
        return Idleness(now, activity.ended if activity else 0)
    if activity is None:
        return before
    busy = activity.open > 0 or activity.ended > before.ended
    return Idleness(now if busy else before.since, activity.ended)


def read_activity(metrics: str) -> Activity:
    """Return the numbers of sessions in a target's metrics."""
    values = {
        family.name: sum(sample.value for sample in family.samples)
        for family in text_string_to_metric_families(metrics)
    }
    names = ("outrider_sessions", "outrider_sessions_ended")
    return Activity(*(int(values.get(name, 0)) for name in names))


def main(arguments: Sequence[str]) -> int:
    """Return 0 if the target was idle for long enough.

    arguments: minutes without a session, port of the target's metrics, file of the last state
    """
    minutes, port, state = arguments
    return run_command(lambda: _check(float(minutes), Path(state), int(port)), debug=False)


def _check(minutes: float, state: Path, port: int) -> int:
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    idle_now = idleness(_stored(state), _ask(port), now)
    write_whole(state, f"{idle_now.since} {idle_now.ended}")
    idle = (now - idle_now.since) / 60
    print(f"no session for {idle:.0f} of {minutes:g} minutes")
    return 0 if idle >= minutes else FAILED


def _stored(state: Path) -> Idleness | None:
    """Return the stored idleness; None at first, and if the file is corrupt."""
    try:
        since, ended = state.read_text(encoding="ascii").split()
        return Idleness(float(since), int(ended))
    except (OSError, ValueError):
        return None


def _ask(port: int) -> Activity | None:
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=_ANSWER_SECONDS) as answer:
            return read_activity(answer.read().decode())
    except (URLError, OSError):
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
