"""Shows two outputs side by side in the terminal, as their tokens arrive."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from textwrap import fill
from typing import TypeAlias

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from inference.command import say
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
