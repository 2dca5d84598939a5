"""Runs all texts: several at a time, shown in the order of their prompts, with a summary."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from inference.command import INTERRUPTED, printable, say
from inference.errors import OutriderError
from outrider.options.groups import TextOptions
from outrider.options.roles import TextRole
from outrider.terminal.live_text import LiveText, in_colour, silent
from outrider.terminal.summary import summary, write_options, write_profile
from outrider.text.completion import Broken, Complete, Completion, Request, Show, new_completion


def run(
    options: TextRole,
    requests: Sequence[Request],
    make: Complete,
    *,
    workers: int,
    told: Callable[[Sequence[Completion]], str] = lambda finished: "",
) -> int:
    """Complete all requests, `workers` at once, and report in input order. Returns 1 when one
    failed.

    told: further lines of the report
    """
    cancelled, start = threading.Event(), time.perf_counter()
    tell = partial(_show, options.text, texts=len(requests))
    if len(requests) == 1 and not options.text.as_json:
        with LiveText(in_colour(options.text.color)) as show:
            finished = _all(partial(_attempt, make, show=show), requests, cancelled, workers)
        for done in finished:
            tell(done)
    else:
        attempt = partial(_attempt, make, show=silent)
        finished = _all(attempt, requests, cancelled, workers, tell)
    if cancelled.is_set():
        say("interrupted")
    whole = [done for done in finished if not done.error]
    _report(options, whole, time.perf_counter() - start, told)
    return INTERRUPTED if cancelled.is_set() else int(len(whole) < len(finished))


def _all(
    attempt: Callable[..., Completion],
    requests: Sequence[Request],
    cancelled: threading.Event,
    workers: int,
    tell: Callable[[Completion], None] = lambda done: None,
) -> list[Completion]:
    """Complete all requests. Where the user interrupts, those that had begun end where they are.

    tell: hears of each, in input order
    """
    finished: list[Completion] = []
    with ThreadPoolExecutor(workers) as pool:
        futures = [
            pool.submit(attempt, request=request, cancelled=cancelled) for request in requests
        ]
        try:
            for future in futures:
                finished.append(future.result())
                tell(finished[-1])
        except KeyboardInterrupt:
            cancelled.set()
            pool.shutdown(cancel_futures=True)
            finished = [future.result() for future in futures if not future.cancelled()]
        except BrokenPipeError:  # nobody reads the texts any more
            cancelled.set()
            pool.shutdown(cancel_futures=True)
            raise
    return finished


def _attempt(
    make: Complete, request: Request, show: Show, cancelled: threading.Event
) -> Completion:
    """Make the text. Where an error ended it, return what was verified until then."""
    try:
        return make(request, show, cancelled)
    except Broken as error:
        return error.done
    except OutriderError as error:
        return replace(new_completion(request), finish_reason="error", error=str(error))


def _show(options: TextOptions, done: Completion, texts: int) -> None:
    """Show a finished text. A single one was streamed, so it is not shown again."""
    if options.as_json:
        print(json.dumps(done.record()), flush=True)
    else:
        if texts > 1 and (done.text or not done.error):
            first = printable(done.prompt.strip().partition("\n")[0])
            print(f"--- {done.index + 1}/{texts}: {first[:60]}\n{done.text}", flush=True)
    if done.error:
        say(f"error: prompt {done.index}: {printable(done.error)}")


def _report(
    options: TextRole,
    finished: Sequence[Completion],
    seconds: float,
    told: Callable[[Sequence[Completion]], str],
) -> None:
    """Print what the run took. With --profile, write it to files, too."""
    if finished:
        lines = [summary(finished, seconds), told(finished)]
        say("\n".join(line for line in lines if line))
    if options.text.profile is not None:
        directory = Path(options.text.profile)
        paths = write_profile(directory, finished)
        paths.append(write_options(directory, options, finished))
        say("profile: " + ", ".join(str(path) for path in paths))
