"""Says how far a build is and how long the rest will take: in lines, and on a terminal by a bar.

The time left is known from the stages that this build has finished, and from the times that earlier
builds of the same model took.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from compile.spec import CompileSpec
from inference.errors import BadArtifact
from inference.file_model import Number, Record, Text, read_record
from inference.files import write_whole
from inference.json_file import read_json

Say = Callable[[str], None]
WEIGHTS, JOINT = "weights", "joint"
"""The stages that are no graph: what all graphs share, and what needs all graphs."""


@dataclass(frozen=True)
class _StageTimes(Record):
    """The contents of a file of times."""

    seconds: Mapping[Text, Number]  # stage -> seconds of its latest run


class BuildTimes:
    """Keeps the seconds of each stage for later builds, in a small file for each model and device.

    path: the file; None: nothing is kept
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path, self.before = path, _read(path)
        self._now: dict[str, float] = dict(self.before)

    @classmethod
    def of(cls, directory: Path, spec: CompileSpec, model_fingerprint: str) -> BuildTimes:
        """The times of this model on this device, in a file below the directory."""
        subject = [spec.target, spec.dtype, spec.tensor_parallel, model_fingerprint]
        digest = hashlib.sha256(json.dumps(subject).encode()).hexdigest()
        return cls(directory / f"{digest[:16]}.json")

    def keep(self, stage: str, seconds: float) -> None:
        """Keep the time of a stage; nothing where the file cannot be written."""
        self._now[stage] = round(seconds, 3)
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(asdict(_StageTimes(self._now))) + "\n")
        except OSError:
            self._path = None


def _read(path: Path | None) -> Mapping[str, float]:
    """The times in a file. One that is missing or spoilt has none, and is replaced."""
    if path is None or not path.is_file():
        return {}
    try:
        return read_record(read_json(path, BadArtifact), _StageTimes).seconds
    except BadArtifact:
        return {}


class BuildProgress:
    """Tells of a build's stages, and how long it will still take. Stages may run at the same time,
    and report from their own threads.

    A stage is expected to take what it took in an earlier build, times what this build takes in
    relation to that one. A stage that nobody knows is expected to take as long as the mean graph.

    say: takes each line
    show: hears of each change, for a bar; without it, a line says when a stage starts
    """

    def __init__(
        self,
        say: Say,
        times: BuildTimes | None = None,
        show: Callable[[BuildProgress], None] | None = None,
    ) -> None:
        self._say, self._show, self._times = say, show, times or BuildTimes()
        self._lock = threading.RLock()
        self._workers = 1
        self._open: dict[str, float | None] = {}  # stage -> when it started
        self._took: dict[str, float] = {}
        self._labels: dict[str, str] = {}

    def planned(self, stages: Sequence[str], workers: int) -> None:
        """Take the names of all stages in their order, and how many graphs are built at once."""
        with self._lock:
            self._open, self._workers = dict.fromkeys(stages), workers
            self._labels = {
                name: f"[{index}/{len(stages)}] {name}" for index, name in enumerate(stages, 1)
            }

    def started(self, stage: str) -> None:
        """Tell that a stage is run."""
        with self._lock:
            self._open[stage] = time.monotonic()
            left = self.left()
        self._told("" if self._show else f"{self._labels[stage]} ...{left and f' {left}'}")

    def finished(self, stage: str, seconds: float, size: int) -> None:
        """Tell that a stage was run. size: bytes of its files."""
        with self._lock:
            self._open.pop(stage, None)
            self._took[stage] = seconds
            self._times.keep(stage, seconds)
        self._told(f"{self._labels[stage]}: {seconds:.1f} s, {size / 1e6:.2f} MB")

    def present(self, stage: str) -> None:
        """Tell that a stage was run by an earlier build, and is not run again."""
        with self._lock:
            self._open.pop(stage, None)
        self._told(f"{self._labels[stage]}: already built")

    def _told(self, line: str) -> None:
        if line:
            self._say(line)
        if self._show is not None:
            self._show(self)

    @property
    def counts(self) -> tuple[int, int]:
        """Stages that have ended or need not be run, and all stages."""
        return len(self._labels) - len(self._open), len(self._labels)

    def running(self) -> str:
        """The stages that have started and not ended, in words."""
        with self._lock:
            stages = [stage for stage, since in self._open.items() if since is not None]
        more = f" and {len(stages) - 1} more" if len(stages) > 1 else ""
        return f"{stages[0]}{more}" if stages else "planning"

    def left(self) -> str:
        """The time left in words; nothing where it is not known."""
        seconds = self.seconds()
        if seconds is None:
            return ""
        if seconds < 90:
            return f"about {max(1, round(seconds))} s left"
        if seconds < 90 * 60:
            return f"about {round(seconds / 60)} min left"
        return f"about {seconds / 3600:.1f} h left"

    def seconds(self) -> float | None:
        """Seconds until the build ends; None while nothing is known of its graphs."""
        total = 0.0
        with self._lock:
            for stage, since in self._open.items():
                expected = self._expected(stage)
                if expected is None:
                    return None
                total += max(0.0, expected - (0.0 if since is None else time.monotonic() - since))
            return total / max(1, min(self._workers, len(self._open)))

    def _expected(self, stage: str) -> float | None:
        kept = self._times.before
        known = [each for each in self._took if each in kept]
        pace = 1.0
        if any(_is_graph(each) for each in known):
            before = sum(kept[each] for each in known)
            pace = sum(self._took[each] for each in known) / max(1e-3, before)
        if stage in kept:
            return kept[stage] * pace
        if not _is_graph(stage):
            return 0.0
        graphs = [seconds for each, seconds in self._took.items() if _is_graph(each)]
        graphs = graphs or [seconds * pace for each, seconds in kept.items() if _is_graph(each)]
        return sum(graphs) / len(graphs) if graphs else None


@contextmanager
def live_progress(times: BuildTimes) -> Iterator[BuildProgress]:
    """Progress on a terminal: a line for each finished stage above a bar that counts down."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
    from rich.text import Text

    class Left(ProgressColumn):
        max_refresh = 1.0

        def render(self, task: object) -> Text:
            return Text(progress.left())

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        Left(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("planning", total=None)

    def show(now: BuildProgress) -> None:
        passed, stages = now.counts
        bar.update(task, total=stages, completed=passed, description=now.running())

    progress = BuildProgress(
        lambda line: bar.console.print(line, highlight=False, markup=False), times, show
    )
    with bar:
        yield progress


def _is_graph(stage: str) -> bool:
    return stage not in (WEIGHTS, JOINT)
