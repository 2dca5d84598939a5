"""Reports a build's progress: a line for each stage and, on a terminal, a bar below the lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

Say = Callable[[str], None]
WEIGHTS, JOINT = "weights", "joint"
"""The stages other than graphs: files for all graphs, and what is built from all graphs."""


class BuildProgress:
    """Reports a build's stages, which may run at the same time in several threads.

    say: prints a line
    bar: shows the number of finished stages; without it, a line is printed when a stage starts
    """

    def __init__(self, say: Say, bar: Progress | None = None) -> None:
        self.say, self._bar = say, bar or Progress(disable=True)
        self._labels: dict[str, str] = {}
        self._task = self._bar.add_task("planning", total=None)

    def plan(self, stages: Sequence[str]) -> None:
        """Set the names of all stages, in order."""
        self._labels = {
            name: f"[{index}/{len(stages)}] {name}" for index, name in enumerate(stages, 1)
        }
        self._bar.update(self._task, total=len(stages))

    def start(self, stage: str) -> None:
        """Report that a stage has started."""
        self._bar.update(self._task, description=stage)
        if self._bar.disable:
            self.say(f"{self._labels[stage]} ...")

    def finish(self, stage: str, seconds: float, size: int) -> None:
        """Report that a stage has finished. size: bytes of its files"""
        self._end(f"{self._labels[stage]}: {seconds:.1f} s, {size / 1e6:.2f} MB")

    def skip(self, stage: str) -> None:
        """Report that a stage is unchanged since an earlier build."""
        self._end(f"{self._labels[stage]}: already built")

    def _end(self, line: str) -> None:
        self.say(line)
        self._bar.advance(self._task)


@contextmanager
def live_progress() -> Iterator[BuildProgress]:
    """Yield progress for a terminal: lines for stages above a bar with the remaining time."""
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        yield BuildProgress(lambda line: console.print(line, highlight=False, markup=False), bar)
