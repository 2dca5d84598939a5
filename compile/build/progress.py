"""Says how far a build is and how long the rest will take, in plain lines or live on a terminal.

The time left is known from the stages that this build has finished, and from the times that earlier
builds of the same model took.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from compile.build.kept_times import KeptTimes

Say = Callable[[str], None]
WEIGHTS, JOINT = "weights", "joint"
"""The stages that are no graph: what all graphs share, and what needs all graphs."""


class BuildProgress(Protocol):
    """Who hears of a build's stages. Stages may run at the same time, and report from their own
    threads.
    """

    def planned(self, stages: Sequence[str], workers: int) -> None:
        """The names of all stages in their order, and how many graphs are built at once."""
        ...

    def started(self, stage: str) -> None: ...

    def finished(self, stage: str, seconds: float, size: int) -> None:
        """A stage was run. size: bytes of its files."""
        ...

    def present(self, stage: str) -> None:
        """A stage was run by an earlier build, and is not run again."""
        ...


class TimeLeft:
    """Estimates how long a build will still take.

    A stage is expected to take what it took in an earlier build, times what this build takes in
    relation to that one. A stage that nobody knows is expected to take as long as the mean graph.
    """

    def __init__(self, kept: KeptTimes) -> None:
        self._kept, self._workers = kept, 1
        self._open: dict[str, float | None] = {}  # stage -> when it started
        self._took: dict[str, float] = {}

    def planned(self, stages: Sequence[str], workers: int) -> None:
        self._open, self._workers = dict.fromkeys(stages), workers

    def started(self, stage: str) -> None:
        self._open[stage] = time.monotonic()

    def present(self, stage: str) -> None:
        self._open.pop(stage, None)

    def finished(self, stage: str, seconds: float) -> None:
        self._open.pop(stage, None)
        self._took[stage] = seconds
        self._kept.keep(stage, seconds)

    def running(self) -> list[str]:
        """The stages that have started and not ended."""
        return [stage for stage, since in self._open.items() if since is not None]

    def seconds(self) -> float | None:
        """Seconds until the build ends; None while nothing is known of its graphs."""
        total = 0.0
        for stage, since in self._open.items():
            expected = self._expected(stage)
            if expected is None:
                return None
            total += max(0.0, expected - (0.0 if since is None else time.monotonic() - since))
        return total / max(1, min(self._workers, len(self._open)))

    def _expected(self, stage: str) -> float | None:
        kept = self._kept.before
        known = [each for each in self._took if each in kept]
        pace = (
            sum(self._took[each] for each in known) / max(1e-3, sum(kept[each] for each in known))
            if any(_is_graph(each) for each in known)
            else 1.0
        )
        if stage in kept:
            return kept[stage] * pace
        if not _is_graph(stage):
            return 0.0
        graphs = [seconds for each, seconds in self._took.items() if _is_graph(each)]
        graphs = graphs or [seconds * pace for each, seconds in kept.items() if _is_graph(each)]
        return sum(graphs) / len(graphs) if graphs else None


class LineProgress:
    """A BuildProgress in lines, for logs and files."""

    def __init__(self, say: Say, kept: KeptTimes | None = None) -> None:
        self._say, self._left, self._lock = say, TimeLeft(kept or KeptTimes()), threading.Lock()
        self._labels: dict[str, str] = {}

    def planned(self, stages: Sequence[str], workers: int) -> None:
        with self._lock:
            self._left.planned(stages, workers)
            self._labels = _labels(stages)

    def started(self, stage: str) -> None:
        with self._lock:
            self._left.started(stage)
            self._say(f"{self._labels[stage]} ...{_told(self._left.seconds())}")

    def finished(self, stage: str, seconds: float, size: int) -> None:
        with self._lock:
            self._left.finished(stage, seconds)
            self._say(f"{self._labels[stage]}: {seconds:.1f} s, {size / 1e6:.2f} MB")

    def present(self, stage: str) -> None:
        with self._lock:
            self._left.present(stage)
            self._say(f"{self._labels[stage]}: already built")


class LiveProgress:
    """A BuildProgress on a terminal: a line for each finished stage above a bar that moves."""

    def __init__(self, kept: KeptTimes) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._left, self._lock = TimeLeft(kept), threading.Lock()
        self._labels: dict[str, str] = {}
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("planning", total=None, left="")

    @contextmanager
    def shown(self) -> Iterator[LiveProgress]:
        """Show the bar until the context ends, and count the time left down."""
        ended = threading.Event()

        def count_down() -> None:
            while not ended.wait(1.0):
                self._update()

        counter = threading.Thread(target=count_down, daemon=True)
        with self._bar:
            counter.start()
            try:
                yield self
            finally:
                ended.set()
                counter.join()

    def planned(self, stages: Sequence[str], workers: int) -> None:
        with self._lock:
            self._left.planned(stages, workers)
            self._labels = _labels(stages)
        self._bar.update(self._task, total=len(stages))

    def started(self, stage: str) -> None:
        with self._lock:
            self._left.started(stage)
        self._update()

    def finished(self, stage: str, seconds: float, size: int) -> None:
        with self._lock:
            self._left.finished(stage, seconds)
        self._passed(f"{self._labels[stage]}: {seconds:.1f} s, {size / 1e6:.2f} MB")

    def present(self, stage: str) -> None:
        with self._lock:
            self._left.present(stage)
        self._passed(f"{self._labels[stage]}: already built")

    def _passed(self, line: str) -> None:
        self._bar.console.print(line, highlight=False, markup=False)
        self._bar.advance(self._task)
        self._update()

    def _update(self) -> None:
        with self._lock:
            running, left = self._left.running(), self._left.seconds()
        more = f" and {len(running) - 1} more" if len(running) > 1 else ""
        self._bar.update(
            self._task,
            description=f"{running[0]}{more}" if running else "",
            left=_told(left).removeprefix(" "),
        )


def _is_graph(stage: str) -> bool:
    return stage not in (WEIGHTS, JOINT)


def _labels(stages: Sequence[str]) -> dict[str, str]:
    return {name: f"[{index}/{len(stages)}] {name}" for index, name in enumerate(stages, 1)}


def _told(left: float | None) -> str:
    """The time left in words; nothing where it is not known."""
    if left is None:
        return ""
    if left < 90:
        return f" about {max(1, round(left))} s left"
    if left < 90 * 60:
        return f" about {round(left / 60)} min left"
    return f" about {left / 3600:.1f} h left"
