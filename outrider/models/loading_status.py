"""Shows the progress of loading a model on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from inference.command import has_display, say
from outrider.models.machine import size_words

if TYPE_CHECKING:
    from inference.model.checkpoints.checkpoint import Loading

LARGE = 200e6
"""Bytes from which on a model's loading is announced where no progress can be shown."""


@contextmanager
def loading_status(name: str) -> Iterator[Callable[[Loading], None]]:
    """Show the bytes read and the time left, on a terminal that nothing else uses. Elsewhere print
    one line at the beginning, for a large model only.
    """
    console = Console(stderr=True)
    drawn = console.is_terminal and not console.is_dumb_terminal and not has_display()
    columns = (TextColumn("loading {task.description}", markup=False), BarColumn(bar_width=24))
    with Progress(
        *columns,
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        disable=not drawn,
    ) as progress:
        task = progress.add_task(name, total=None)

        def report(loading: Loading) -> None:
            if loading.bytes_read == 0 and loading.size > LARGE and not drawn:
                files = f"{loading.files} files, " * (loading.files > 1)
                say(f"loading {name}: {files}{size_words(loading.size)}")
            progress.update(task, completed=loading.bytes_read, total=loading.size)

        yield report
