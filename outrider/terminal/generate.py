"""Roles that generate text with a remote target: draft (drafts on this machine) and fused_client
(drafts at the target). Both read prompts, turn them into requests, and run the requests.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event

from inference.command import INTERRUPTED, printable, say
from inference.errors import OutriderError
from inference.loop.draft_thread import take_short_turns
from inference.times import Times
from outrider.client.client import Client, open_client
from outrider.options.draft_flags import BESIDE
from outrider.options.groups import TextOptions
from outrider.options.roles import DraftRole, FusedClientRole, TextRole
from outrider.terminal.live_text import LiveText, in_colour
from outrider.terminal.summary import account, summary, write_options, write_profile
from outrider.text.completion import (
    Complete,
    Completion,
    Request,
    Show,
    new_completion,
    silent,
)
from outrider.text.limits import time_lines
from outrider.text.pieces import Piece
from outrider.text.prompts import make_requests, read_prompts
from outrider.text.runner import TextRun


def draft(options: DraftRole) -> int:
    """Role draft: draft on this machine, verify at --target_host."""
    prompts = read_prompts(options)
    take_short_turns()
    with open_client(options) as client:
        requests = make_requests(client.text_model, options, prompts)
        if options.beside:
            colocated = client.target.description.draft_model
            say(f"draft beside the target: {colocated or 'none'}")

        def more_lines(finished: Sequence[Completion]) -> str:
            lines = [*_time_lines(client, finished), account(finished, client.budget, client.goal)]
            return "\n".join(line for line in lines if line)

        rows = min(options.batch, len(requests))

        def make(request: Request, show: Show, cancelled: Event) -> Completion:
            done = client.complete(request, show, cancelled)
            return _with_baseline(done, request, client, cancelled) if options.baseline else done

        client.load(rows)
        if options.baseline:
            client.wait()  # otherwise the comparison could miss the draft
        code = run(options, requests, make, workers=rows, more_lines=more_lines)
        client.check()  # an error of the draft fails the command, not its requests
        return code


def _time_lines(client: Client, finished: Sequence[Completion]) -> list[str]:
    """Format the lines about time and limits; none without a draft that runs asynchronously."""
    if not finished or client.round_trip is None:
        return []
    times = Times(dict(client.target.description.times))
    return time_lines(finished, client.round_trip, times)


def fused_client(options: FusedClientRole) -> int:
    """Role fused_client: generate with the target and the draft on its device, if any. This process
    loads the tokenizer only, no model.
    """
    unshared = {"role", "target_model", "model"}
    flags = {name: value for name, value in options.explicit().items() if name not in unshared}
    return draft(DraftRole(**flags, model=options.target_name, draft=BESIDE))


def _with_baseline(
    done: Completion, request: Request, client: Client, cancelled: Event
) -> Completion:
    """Return the record with a target-only run of the same request, to the same length."""
    if done.failure is not None or not done.token_ids or cancelled.is_set():
        return done
    if not done.whole:
        request = replace(request, max_new_tokens=len(done.token_ids))
    baseline = client.complete(request, silent, cancelled, alone=True, charged=False)
    if baseline.failure is not None:
        return replace(done, finish_reason="error", failure=baseline.failure)
    return replace(done, baseline=baseline)


def run(
    options: TextRole,
    requests: Sequence[Request],
    make: Complete,
    *,
    workers: int,
    more_lines: Callable[[Sequence[Completion]], str] = lambda finished: "",
) -> int:
    """Complete all requests, `workers` at once, and report in input order. Returns 1 if any
    failed.

    more_lines: returns further lines of the report
    """
    start, several = time.perf_counter(), len(requests) > 1
    if several or options.as_json:
        tell = partial(_show, options, texts=len(requests))
        finished, interrupted = _all(make, requests, workers, None, tell)
    else:
        with LiveText(in_colour()) as show:
            finished, interrupted = _all(make, requests, workers, show, lambda done: None)
        for done in finished:
            _show(options, done, texts=1)
    if interrupted:
        say("interrupted")
    completed = [done for done in finished if done.failure is None]
    _report(options, completed, time.perf_counter() - start, more_lines)
    return INTERRUPTED if interrupted else int(len(completed) < len(finished))


def _all(
    make: Complete,
    requests: Sequence[Request],
    workers: int,
    show: Show | None,
    tell: Callable[[Completion], None],
) -> tuple[list[Completion], bool]:
    """Complete all requests. If the user interrupts, stop running requests and keep their output.
    Returns their records in input order, and whether the user interrupted.

    show: receives the pieces of all outputs
    tell: receives each record, in input order, until the user interrupts
    """
    begun = set[int]()

    def attempt(request: Request, put: Show, end: Event) -> Completion:
        if end.is_set():
            return new_completion(request)
        begun.add(request.index)
        try:
            return make(request, put if show is not None else silent, end)
        except OutriderError as error:
            return new_completion(request, error)

    finished = dict[int, Completion]()
    texts = TextRun([partial(attempt, request) for request in requests], workers)
    reported, interrupted = 0, False
    while True:
        try:
            for index, item in texts:
                if isinstance(item, Piece):
                    if show is not None:
                        show(item)
                    continue
                finished[index] = item
                while reported in finished and not interrupted:
                    tell(finished[reported])
                    reported += 1
            return [finished[index] for index in sorted(begun & finished.keys())], interrupted
        except KeyboardInterrupt:
            interrupted = True
            texts.end()
        except BrokenPipeError:  # the reader of stdout is gone
            texts.end()
            texts.join()
            raise


def _show(options: TextOptions, done: Completion, texts: int) -> None:
    """Print a finished output as text or JSON; a single text was streamed already."""
    if options.as_json:
        print(json.dumps(done.record()), flush=True)
    elif texts > 1 and (done.text or not done.error):
        first = printable(done.prompt.strip().partition("\n")[0])
        print(f"--- {done.index + 1}/{texts}: {first[:60]}\n{done.text}", flush=True)
    if done.error:
        say(f"error: prompt {done.index}: {printable(done.error)}")


def _report(
    options: TextRole,
    finished: Sequence[Completion],
    seconds: float,
    more_lines: Callable[[Sequence[Completion]], str],
) -> None:
    """Print the summary of the run. With --profile, write it to files, too."""
    if finished:
        lines = [summary(finished, seconds), more_lines(finished)]
        say("\n".join(line for line in lines if line))
    if options.profile is not None:
        directory = Path(options.profile)
        paths = write_profile(directory, finished)
        paths.append(write_options(directory, options, finished))
        say("profile: " + ", ".join(str(path) for path in paths))
