"""Shows progress and remaining time on stderr: a bar on a terminal, otherwise lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from inference.command import say


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with the name of each completed step."""
    if not sys.stderr.isatty():
        yield _lines(total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("first step", total=total)
        yield lambda name: bar.update(task, advance=1, description=name)


def _lines(total: int) -> Callable[[str], None]:
    start, done = time.perf_counter(), 0

    def report(name: str) -> None:
        nonlocal done
        done += 1
        remaining = (time.perf_counter() - start) / done * (total - done)
        say(f"{done} of {total}: {name}; {remaining / 60:.1f} min left")

    return report
