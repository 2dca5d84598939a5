"""`outrider recommend`: measures the drafts that fit a target, and names the command to use."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

from grpc_comm.translate import Description
from inference.command import printable, say
from inference.draft_thread import take_short_turns
from inference.errors import InvalidRequest, OutriderError
from inference.times import Times
from outrider.client.client import Client, open_client
from outrider.client.connecting import connect_target, full_description, tokenizer_identity
from outrider.client.probing import measure_round_trip
from outrider.doctor.checks import machine
from outrider.measure.arms import AGAIN, BASELINE, client_arm, with_again
from outrider.measure.figures import ALL, Row, summarise
from outrider.measure.journal import Journal, RunRecord
from outrider.measure.options import MeasuredTexts, RecommendOptions
from outrider.measure.report import Report
from outrider.measure.run import WARM_UP_TOKENS, Run
from outrider.measure.sets import read_sets
from outrider.measure.tasks import tasks_of
from outrider.models.models_here import ModelHere, find_models
from outrider.models.published_models import fetch_agreed, judged, published_for
from outrider.options.roles import DraftRole
from outrider.text.completion import Completion
from outrider.text.limits import Limit, dear_law, limit_of

MAX_DRAFTS = 3
"""Maximum number of drafts measured: the smallest ones."""

KINDS, PROMPTS = ("chat", "code", "edits", "summaries"), 2
"""Kinds of the small set that are measured, and prompts of each."""

PLANNED = 0.9
"""Share of the time that texts take; prompts take the rest."""

WORTH = 1.05
"""Minimum speed-up of a recommendation."""


class Way(NamedTuple):
    """A way of drafting, ready to draft. flags: those of `outrider run` that ask for it"""

    name: str
    flags: dict[str, Any]
    size: int  # bytes of its weights
    client: Client
    seconds: float  # of loading


def run(options: RecommendOptions) -> int:
    """Find drafts, measure, and print. Raises InvalidRequest where nothing can be measured."""
    take_short_turns()
    with connect_target(options.connection) as target:
        there, trip = full_description(target), measure_round_trip(target.probe, say)
    paths = [Path(path) for path in (options.draft_model or "").split(",") if path]
    here = [judged(one, there) for one in find_models(paths)]
    if options.download:
        fetch_agreed(published_for(there.model, here), tokenizer_identity(there))
        here = [judged(one, there) for one in find_models(paths)]
    published = [str(one) for one in published_for(there.model, here)]
    left_out = {one.name: one.refusal for one in here if one.refusal}
    print(f"here: {machine()}", *(f"published, not here: {one}" for one in published), sep="\n")
    begun = time.perf_counter()
    with ExitStack() as stack:
        ways = list(loaded(options, here, there, stack, left_out))
        known, last = measure(ways, begun + options.seconds, options.max_new_tokens)
    rows = {one.arm: one for one in summarise(known.texts, [way.name for way in ways])
            if one.kind == ALL}  # fmt: skip
    best = choose([*rows.values()])
    why = "" if best != BASELINE else reason(Times(dict(there.times)), last, trip)
    line = command(options.of_run(**next(way.flags for way in ways if way.name == best)))
    remarks = [f"left out: {name}: {refusal}" for name, refusal in left_out.items()]
    remarks += [
        f"{way.name}: {way.size / 1e6:.3g} MB, loaded in {way.seconds:.3g} s" for way in ways
    ]
    report = Report(
        f"target: {there.model} on {there.device}, round trip {trip * 1e3:.3g} ms",
        [why or f"{best} is the fastest here, {rows[best].speed_up} of target-only's speed."],
        [*rows.values()],
        known,
        remarks,
        data={"left_out": left_out, "published": published, "command": line},
    )
    report.publish(None if options.out is None else Path(options.out))
    print(line)
    return 0


def loaded(
    options: RecommendOptions,
    here: Sequence[ModelHere],
    target: Description,
    stack: ExitStack,
    left_out: dict[str, str],
) -> Iterator[Way]:
    """Load the target alone, copied text alone, and the smallest drafts.

    left_out: receives the reason of a draft that fails. Raises InvalidRequest without a tokenizer.
    """
    sources = [one for one in here if one.drafts_for(tokenizer_identity(target))]
    if not sources:
        raise InvalidRequest(
            f"no model on this machine has the tokenizer of {target.model}: --download fetches a "
            "published one, --draft_model names a directory"
        )
    known = sources[0].as_flag("model")
    fit = sorted((one for one in here if not one.refusal), key=lambda one: one.size)
    ways = [(BASELINE, {"draft": "none", **known}, 0)]
    ways += [("copied text", {"draft": "copy", **known}, 0)]
    ways += [(one.name, one.as_flag("draft_model"), one.size) for one in fit[:MAX_DRAFTS]]
    for one in fit[MAX_DRAFTS:]:
        left_out[one.name] = f"only the {MAX_DRAFTS} smallest are measured"
    for name, flags, size in ways:
        begun = time.perf_counter()
        try:
            client = stack.enter_context(open_client(DraftRole(**options.of_run(**flags))))
            client.wait()
        except OutriderError as error:
            if not size:  # no draft: the target itself
                raise
            left_out[name] = printable(str(error))
        else:
            yield Way(name, flags, size, client, time.perf_counter() - begun)


def measure(ways: Sequence[Way], deadline: float, limit: int) -> tuple[RunRecord, Completion]:
    """Generate texts of the small set in every way in turn, until the prompts or the time end.
    Returns the texts, and the latest of the last way. Raises InvalidRequest for too little time.

    limit: maximum tokens of a text; fewer where the time is short, so that every kind is measured
    """
    target, arms = ways[0].client, with_again([client_arm(way.name, way.client) for way in ways])
    items = [item for item in read_sets(["small"], PROMPTS, 0) if item.kind in KINDS]
    run = Run(Journal(None, RunRecord({"settings": {}, "prompts": {}})), arms, deadline=deadline)
    few = tasks_of(items, MeasuredTexts(max_new_tokens=WARM_UP_TOKENS), target)[0].request(())
    for _ in range(2):  # the first is slow
        begun = time.perf_counter()
        arms[0].make(few, Event())
    speed = WARM_UP_TOKENS / (time.perf_counter() - begun)
    tokens = PLANNED * (deadline - time.perf_counter()) * speed / len(arms)  # for each arm
    if tokens < WARM_UP_TOKENS:
        raise InvalidRequest(f"--seconds: too few for a target of {speed:.2g} tokens/s")
    length = min(limit, max(WARM_UP_TOKENS, int(tokens / len(KINDS))))
    run.make(tasks_of(items, MeasuredTexts(max_new_tokens=length), target))
    return run.journal.known, run.latest[arms[-1].name]


def choose(rows: Sequence[Row]) -> str:
    """The arm of the largest speed-up; target-only where no other is worth a draft, or lies beyond
    the noise.
    """
    worth = {
        row.arm: row.speed_up.mean
        for row in rows
        if row.speed_up is not None and row.arm != AGAIN
        if row.speed_up.mean >= max(WORTH, row.noise.high if row.noise else 0.0)
    }
    return max(worth, key=worth.__getitem__, default=BASELINE)


def reason(times: Times, drafted: Completion, round_trip: float) -> str:
    """The reason why no draft pays: the target's times by nodes, else the limit of a text."""
    law = dear_law(times)
    limit = Limit.ARITHMETIC if law else limit_of(drafted, round_trip)
    return f"no draft pays here: {limit.value.format(law=law)}"


def command(flags: Mapping[str, Any]) -> str:
    """The command line of `outrider run` with these flags."""
    given = [(name, value) for name, value in flags.items() if value is not False]
    words = [f"--{name}" if value is True else f"--{name}={value}" for name, value in given]
    return shlex.join(["outrider", "run", "def main():", *words])
