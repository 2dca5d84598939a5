"""`outrider demo`: generates with the target alone and with Outrider, side by side."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

from inference.command import messages_to, run_command, say
from inference.errors import require
from inference.flags.command_line import CommandOptions, parse_flags
from outrider.terminal.race import ALONE, OUTRIDER, Arrival, Lane, conclude, replay_real, show_race

if TYPE_CHECKING:
    from outrider.client.client import Client
    from outrider.client.watching import TextEvent
    from outrider.text.completion import Completion, Request

PROFILE, ROUND_TRIP_MS = "llama-3.1-8b-trn1.2xlarge-measured", 20
EMULATED = (
    "emulated: forward passes take the published time of Llama-3.1-8B on a trn1.2xlarge, "
    f"{ROUND_TRIP_MS} ms away; the tiny bundled models write the text"
)
NEXT = (
    "run a real pair on this machine: outrider up qwen2.5-coder",
    "replay a recording of a real pair: outrider demo --real",
)

PROMPT = '''class Cache:
    """A cache of values by key."""

    def __init__(self, maxsize):
        self._maxsize = maxsize
        self._data = {}

    def get(self, key'''
SEED, MAX_TOKENS = 10, 200
"""Chosen by trials with the embedded pair: the output does not repeat itself."""

WARM_UP_TOKENS = 8
MAX_PACE = 1.15
"""Maximum ratio of measured to emulated forward-pass time; above, the machine was too busy."""
MIN_PROCESSOR = 0.8
"""Minimum CPU seconds per second of drafting; below, the machine was too busy."""


class DemoOptions(CommandOptions):
    """Generate a text with Outrider and with the target alone, side by side, with the embedded
    models and an emulated target.
    """

    real: bool = False
    """replay the recording of a real pair at its original speed; needs no torch"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0 if both outputs are equal."""
    options = parse_flags(DemoOptions, "outrider demo", arguments)
    return run_command(replay_real if options.real else _demonstrate, debug=options.debug)


class Texts(NamedTuple):
    """The outputs of the target alone and of the target with a draft.

    busy: why this machine was too busy for a fair speed-up; empty if it was not
    """

    alone: Completion
    drafted: Completion
    busy: str


def _demonstrate() -> int:
    require("torch", "outrider demo")
    load = os.getloadavg()[0]
    say("starting two emulated targets and loading the draft: about ten seconds")
    lanes = [Lane(name, PROMPT) for name in (ALONE, OUTRIDER)]
    with messages_to(lambda line: None), _clients() as clients:
        texts = _race(*clients, lanes, load)
    conclude(lanes, conclusion(texts))
    return int(texts.alone.token_ids != texts.drafted.token_ids)


@contextmanager
def _clients() -> Iterator[tuple[Client, Client]]:
    """Start two emulated targets and yield a client of each, the second with a loaded draft."""
    from outrider.client.client import open_client
    from outrider.options.roles import SharedClientRole
    from outrider.target.spawn import started

    flags = ["--emulate", PROFILE, "--rtt", str(ROUND_TRIP_MS), "--batch", "1", "--threads", "1"]
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        starts = [pool.submit(stack.enter_context, started("target", flags)) for _ in range(2)]
        import torch  # noqa: F401  meanwhile

        first, second = (start.result().address for start in starts)
        alone = SharedClientRole(target_host=first, draft="none")
        drafted = SharedClientRole(target_host=second, threads=1)
        clients = [stack.enter_context(open_client(role)) for role in (alone, drafted)]
        clients[1].wait()
        yield clients[0], clients[1]


def _race(alone: Client, drafted: Client, lanes: Sequence[Lane], load: float) -> Texts:
    """Generate both outputs at the same time, and show them if the terminal is wide enough."""
    from inference.loop.draft_thread import take_short_turns
    from outrider.text.completion import silent
    from outrider.text.parameters import Parameters
    from outrider.text.prompts import make_request

    take_short_turns()
    clients, parameters = (alone, drafted), Parameters(MAX_TOKENS, seed=SEED)
    requests = [make_request(client.text_model, PROMPT, parameters) for client in clients]
    for client, request in zip(clients, requests, strict=True):
        warm_up = replace(request, max_new_tokens=WARM_UP_TOKENS)
        client.complete(warm_up, silent, Event()).raise_failure()
    records: dict[int, Completion] = {}
    cpu_seconds = time.process_time()
    arrivals = _arrivals(clients, requests, records)
    show_race(lanes, arrivals)
    cpu_seconds = time.process_time() - cpu_seconds
    pass_seconds = dict(alone.target.description.times)[1, 1]
    return Texts(
        records[0],
        records[1],
        busy_reason(load, records[0], records[1], pass_seconds, cpu_seconds),
    )


def _arrivals(
    clients: Sequence[Client], requests: Sequence[Request], records: dict[int, Completion]
) -> Iterator[Arrival]:
    """Run all requests at the same time and yield their events; completions go to `records`."""
    from outrider.client.watching import Watcher, ended
    from outrider.text.completion import Completion
    from outrider.text.runner import TextRun

    def task(lane: int, put: Callable[[TextEvent], None], end: Event) -> Completion:
        return Watcher(clients[lane], put).complete(requests[lane], end)

    with TextRun([partial(task, lane) for lane in range(2)], workers=2) as texts:
        for lane, item in texts:
            if isinstance(item, Completion):
                records[lane] = item.raise_failure()
                yield lane, ("end", ended(clients[lane], item))
            else:
                yield lane, item


def busy_reason(
    load: float,
    alone: Completion,
    drafted: Completion,
    pass_seconds: float,
    cpu_seconds: float,
) -> str:
    """Return why this machine was too busy for a fair speed-up; empty if it was not.

    load: load average of the machine before the start
    pass_seconds: emulated seconds of a forward pass of the target alone
    cpu_seconds: CPU seconds of this process
    """
    if load > (processors := os.cpu_count() or 1):
        return f"its load average was {load:.1f} on {processors} processors before the start"
    pace = alone.traffic.model_seconds / max(alone.traffic.forwards, 1)
    if pace > MAX_PACE * pass_seconds:
        return f"a forward pass took {pace * 1e3:.0f} ms instead of {pass_seconds * 1e3:.0f} ms"
    if cpu_seconds < MIN_PROCESSOR * drafted.draft_seconds:
        share = cpu_seconds / drafted.draft_seconds
        return f"the draft got {share:.0%} of a processor"
    return ""


def conclusion(texts: Texts) -> list[str]:
    """Format the lines below the outputs."""
    alone, drafted = texts.alone, texts.drafted
    same = "yes" if alone.token_ids == drafted.token_ids else "no, which is an error of Outrider"
    speed = f"speed-up {alone.seconds / drafted.seconds:.1f}"
    if texts.busy:
        speed = f"this machine is too busy for a fair speed-up: {texts.busy}"
    return [
        f"same text: {same}; {len(drafted.token_ids)} tokens in {drafted.traffic.forwards} forward "
        f"passes with Outrider, {alone.traffic.forwards} without",
        f"{drafted.seconds:.1f} s instead of {alone.seconds:.1f} s: {speed}",
        EMULATED,
        *NEXT,
    ]
