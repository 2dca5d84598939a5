"""Roles that generate text with a remote target: draft (the draft is here) and fused_client (the
draft is beside the target). A role reads the prompts, turns them into requests, and runs these.
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
from inference.errors import InvalidRequest, OutriderError
from inference.loop.draft_thread import take_short_turns
from inference.times import Times
from outrider.client.client import Client, open_client
from outrider.client.watching import Watcher
from outrider.options.draft_flags import BESIDE
from outrider.options.groups import TextOptions
from outrider.options.roles import DraftRole, FusedClientRole, TextRole
from outrider.terminal.live_text import LiveText, in_colour
from outrider.terminal.summary import account, summary, write_options, write_profile
from outrider.terminal.text_recording import ALONE, OUTRIDER, TextRecording
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
    """Role draft: draft here, verify at --target_host."""
    prompts = read_prompts(options.text)
    if options.record is not None and len(prompts) != 1:
        raise InvalidRequest(f"--record needs exactly one prompt: got {len(prompts)}")
    take_short_turns()
    with open_client(options) as client:
        requests = make_requests(client.text_model, options.text, prompts)
        if options.beside:
            there = client.target.description.draft_model
            say(f"draft beside the target: {there or 'none'}")

        def more_lines(finished: Sequence[Completion]) -> str:
            lines = [*_time_lines(client, finished), account(finished, client.budget, client.goal)]
            return "\n".join(line for line in lines if line)

        rows = min(options.batch, len(requests))

        def make(request: Request, show: Show, cancelled: Event) -> Completion:
            record = options.record and Path(options.record)
            recording = TextRecording(client, request.prompt, record) if record else None

            def maker(name: str) -> Client | Watcher:
                return client if recording is None else recording.begin(name)

            done = maker(OUTRIDER).complete(request, show, cancelled)
            if options.baseline:
                done = _with_baseline(done, request, maker(ALONE), cancelled)
            if recording is not None:
                recording.write(done)
            return done

        client.load(rows)
        if options.baseline or options.record is not None:
            client.wait()  # otherwise the comparison could miss the draft
        code = run(options, requests, make, workers=rows, more_lines=more_lines)
        client.check()  # an error of the draft fails the command, not its texts
        return code


def _time_lines(client: Client, finished: Sequence[Completion]) -> list[str]:
    """Lines about time and limits, if a draft that never waits is loaded."""
    if not finished or client.round_trip is None:
        return []
    times = Times(dict(client.target.description.times))
    return time_lines(finished, client.round_trip, times)


def fused_client(options: FusedClientRole) -> int:
    """Role fused_client: generate with the target and the draft beside it, if any. Only the
    tokenizer is loaded here, no model.
    """
    own = {"role", "target_model", "model"}
    flags = {name: value for name, value in options.explicit().items() if name not in own}
    return draft(DraftRole(**flags, model=options.target_name, draft=BESIDE))


def _with_baseline(
    done: Completion, request: Request, maker: Client | Watcher, cancelled: Event
) -> Completion:
    """The record with the target-only text of the same request, as long as this text."""
    if done.failure is not None or not done.token_ids or cancelled.is_set():
        return done
    if not done.whole:
        request = replace(request, max_new_tokens=len(done.token_ids))
    baseline = maker.complete(request, silent, cancelled, alone=True, charged=False)
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
    """Complete all requests, `workers` at once, and report in input order. Returns 1 when one
    failed.

    more_lines: further lines of the report
    """
    start, several = time.perf_counter(), len(requests) > 1
    if several or options.text.as_json:
        tell = partial(_show, options.text, texts=len(requests))
        finished, interrupted = _all(make, requests, workers, None, tell)
    else:
        with LiveText(in_colour()) as show:
            finished, interrupted = _all(make, requests, workers, show, lambda done: None)
        for done in finished:
            _show(options.text, done, texts=1)
    if interrupted:
        say("interrupted")
    whole = [done for done in finished if done.failure is None]
    _report(options, whole, time.perf_counter() - start, more_lines)
    return INTERRUPTED if interrupted else int(len(whole) < len(finished))


def _all(
    make: Complete,
    requests: Sequence[Request],
    workers: int,
    show: Show | None,
    tell: Callable[[Completion], None],
) -> tuple[list[Completion], bool]:
    """Complete all requests. If the user interrupts, running requests stop where they are.
    Returns their records in input order, and whether the user interrupted.

    show: receives the pieces of all texts
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
    """Show a finished text. A single one was streamed, so it is not shown again."""
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
    if options.text.profile is not None:
        directory = Path(options.text.profile)
        paths = write_profile(directory, finished)
        paths.append(write_options(directory, options, finished))
        say("profile: " + ", ".join(str(path) for path in paths))
