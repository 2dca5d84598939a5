"""A recording of a text: its events with their times, in one JSON file that the chat page replays.

The file holds the prompt and the text, but no key, no access token and no address.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inference.errors import Unavailable
from inference.files.writing import write_whole
from outrider.client.client import Client
from outrider.client.watching import TextEvent, Watcher, ended
from outrider.models.machine import cores, processor
from outrider.text.completion import Completion

FORMAT, VERSION = "outrider-recording", 1
"""Name and version of the file's format; outrider/endpoint/page/recording.js reads it."""

ALONE, OUTRIDER = "target-only", "Outrider"
"""Names of the two texts of a comparison."""

MAX_EVENTS = 20_000
"""Maximum events stored per text: those of several thousand tokens."""


@dataclass
class TextRecording:
    """Texts of one prompt, each with its events, for a file at `path`."""

    client: Client
    prompt: str
    path: Path
    tracks: list[dict[str, Any]] = field(default_factory=list)

    def begin(self, name: str) -> Watcher:
        """A watcher of a text by this name, whose events are recorded."""
        track: dict[str, Any] = {"name": name, "cut": False, "events": []}
        self.tracks.append(track)

        def keep(event: TextEvent) -> None:
            events = track["events"]
            if len(events) < MAX_EVENTS:
                events.append(event)
            else:
                track["cut"] = True

        return Watcher(self.client, keep)

    def write(self, done: Completion) -> None:
        """Write the file, with the figures of the finished texts. Raises Unavailable if it cannot
        be written.
        """
        for track, text in zip(self.tracks, (done, done.baseline), strict=False):
            if text is not None:
                track["end"] = ended(self.client, text)
        whole = {
            "format": FORMAT,
            "version": VERSION,
            "model": self.client.model,
            "draft": self.client.draft,
            "device": self.client.target.description.device,
            "machine": f"{processor()}, {cores()} cores",
            "date": datetime.now(UTC).date().isoformat(),
            "prompt": self.prompt,
            "tracks": self.tracks,
        }
        try:
            write_whole(self.path, json.dumps(whole, separators=(",", ":")))
        except OSError as error:
            raise Unavailable(f"{self.path} cannot be written: {error.strerror}") from error
