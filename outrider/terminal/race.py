"""A race of two outputs side by side in the terminal, live or from a recording."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill
from typing import Any, TypeAlias

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from inference.command import say
from inference.errors import InvalidRequest
from outrider.client.watching import TextEvent
from outrider.terminal.live_text import harmless, in_colour

MIN_COLUMNS = 80
"""Minimum width of a terminal for two outputs side by side."""

STYLES = {"prompt": "dim", "target": "bold", "model": "green", "copy": "cyan"}
"""Style of a token by the name of its proposer; for other names, that of `model`."""

_FRAME_SECONDS = 0.1  # between two frames, each of which takes some milliseconds
_BELOW = 6  # lines of the terminal above and below the outputs


Arrival: TypeAlias = tuple[int, TextEvent]
"""The number of a lane (0 is the left one), and an event of that lane."""


@dataclass
class Lane:
    """One of the two outputs, as far as it has arrived."""

    name: str
    prompt: str
    tokens: int = 0
    seconds: float = 0.0
    ended: bool = False
    text: Text = field(init=False)

    def __post_init__(self) -> None:
        self.text = Text().append(harmless(self.prompt), STYLES["prompt"])

    def take(self, event: TextEvent) -> None:
        """Add an event: a piece of text, tokens, or the end of the output."""
        match event:
            case "piece", {"text": text, "by": by, "at": at}:
                self.text.append(harmless(text), STYLES.get(by, STYLES["model"]))
            case "tokens", {"ids": ids, "at": at} if not self.ended:
                self.tokens += len(ids)
            case "end", {"tokens": tokens, "seconds": at}:
                self.tokens = tokens
            case _:
                return
        if not self.ended:  # the last piece comes after the end was measured
            self.seconds, self.ended = at, event[0] == "end"

    @property
    def figures(self) -> str:
        """Tokens, seconds and tokens per second, up to the last arrival."""
        speed = self.tokens / self.seconds if self.seconds else 0.0
        done = "done: " * self.ended
        return f"{done}{self.tokens} tokens, {self.seconds:.1f} s, {speed:.1f} tokens/s"


class Race:
    """The view of all lanes: the latest lines of each, between its name and its figures.

    max_lines: maximum lines of each lane
    """

    def __init__(self, lanes: Sequence[Lane], max_lines: int) -> None:
        self._lanes, self._max_lines = lanes, max_lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width // len(self._lanes) - 4
        wrapped = [lane.text.wrap(console, width)[-self._max_lines :] for lane in self._lanes]
        height = max(map(len, wrapped)) + 2
        grid = Table.grid(expand=True)
        for _ in self._lanes:
            grid.add_column(ratio=1)
        grid.add_row(
            *(
                Panel(Text("\n").join(lines), title=lane.name, subtitle=lane.figures, height=height)
                for lane, lines in zip(self._lanes, wrapped, strict=True)
            )
        )
        rows = (("target", "the target's own token"), ("model", "proposed by the draft"))
        legend = Text("  ").join(
            Text(words, STYLES[by]) for by, words in (*rows, ("copy", "proposed by copying"))
        )
        yield Group(grid, legend)


def can_race() -> bool:
    """Return whether stdout is a terminal that is wide enough and may have colours."""
    return in_colour() and Console().width >= MIN_COLUMNS


def conclude(lanes: Sequence[Lane], lines: Sequence[str]) -> None:
    """Print these lines below the view, or if there is none, below a line for each lane."""
    if can_race():
        say("\n".join(fill(line, Console().width) for line in lines))
    else:
        say("\n".join([*(f"{lane.name}: {lane.figures}" for lane in lanes), *lines]))


def show_race(lanes: Sequence[Lane], arrivals: Iterable[Arrival]) -> None:
    """Read the events into the lanes, and show them meanwhile if the terminal allows."""
    if not can_race():
        for lane, event in arrivals:
            lanes[lane].take(event)
        return
    max_lines = max(shutil.get_terminal_size().lines - _BELOW - 2, 4)
    race, shown = Race(lanes, max_lines), 0.0
    with Live(race, console=Console(), auto_refresh=False) as live:
        for lane, event in arrivals:
            lanes[lane].take(event)
            if (now := time.perf_counter()) - shown > _FRAME_SECONDS:
                shown = now
                live.refresh()
        live.refresh()


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
