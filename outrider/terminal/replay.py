"""Replays the recording of a real pair in the terminal, at its original speed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from inference.errors import InvalidRequest
from outrider.terminal.race import Arrival, Lane, can_race, conclude, show_race

REAL_PAIR = Path(__file__).parent / "data" / "real-pair.json"
"""The bundled recording. CONTRIBUTING.md explains how to record it again."""

FORMAT, VERSION = "outrider-recording", 1
"""Name and version of the file's format, which outrider/endpoint/page/recording.js writes."""

ALONE, OUTRIDER = "target-only", "Outrider"
"""Names of the two tracks of a recording."""

Recording = dict[str, Any]


def read_recording(path: Path) -> Recording:
    """Read a recording. Raises InvalidRequest unless it has both tracks."""
    try:
        recording = json.loads(path.read_text(encoding="utf-8"))
        right_format = (recording["format"], recording["version"]) == (FORMAT, VERSION)
        names = sorted(track["name"] for track in recording["tracks"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"{path} cannot be read as a recording: {error}") from error
    if not right_format or names != sorted((ALONE, OUTRIDER)):
        raise InvalidRequest(
            f"{path} is not a comparison: needs {FORMAT} version {VERSION} with the texts {ALONE} "
            f'and {OUTRIDER}, as the chat page saves after "Compare without draft"'
        )
    return dict(recording)


def arrivals_of(recording: Recording) -> list[tuple[float, Arrival]]:
    """Return the events of both tracks with their seconds, by time. Lane 0 is the target alone."""
    arrivals = list[tuple[float, Arrival]]()
    for track in recording["tracks"]:
        lane, end = int(track["name"] == OUTRIDER), track["end"]
        arrivals += [(data["at"], (lane, (name, data))) for name, data in track["events"]]
        arrivals.append((end["seconds"], (lane, ("end", end))))
    return sorted(arrivals, key=lambda arrival: arrival[0])


def replay_real() -> int:
    """Replay the bundled recording. Returns 0."""
    recording = read_recording(REAL_PAIR)
    lanes = [Lane(name, recording["prompt"]) for name in (ALONE, OUTRIDER)]
    show_race(lanes, _replayed(arrivals_of(recording), waits=can_race()))
    conclude(lanes, conclusion(recording))
    return 0


def conclusion(recording: Recording) -> list[str]:
    """Format the lines below the outputs."""
    tracks = {track["name"]: track for track in recording["tracks"]}
    seconds = {name: track["end"]["seconds"] for name, track in tracks.items()}
    ids = [
        [token for name, data in track["events"] if name == "tokens" for token in data["ids"]]
        for track in tracks.values()
    ]
    return [
        f"same text: {'yes' if ids[0] == ids[1] else 'no'}, {len(ids[0])} tokens",
        f"{seconds[OUTRIDER]:.1f} s instead of {seconds[ALONE]:.1f} s: "
        f"speed-up {seconds[ALONE] / seconds[OUTRIDER]:.1f}",
        f"recorded on {recording['date']}: {recording['model']} on {recording['device']}, drafted "
        f"by {recording['draft']} on {recording['machine']}",
        f'to replay it on the chat page: "Open recording", {REAL_PAIR}',
    ]


def _replayed(arrivals: Sequence[tuple[float, Arrival]], *, waits: bool) -> Iterator[Arrival]:
    """Yield each event: at its recorded time if `waits`, else at once."""
    begun = time.perf_counter()
    for at, arrival in arrivals:
        if waits and (delay := begun + at - time.perf_counter()) > 0:
            time.sleep(delay)
        yield arrival
