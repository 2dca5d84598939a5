"""`outrider recommend`: measures the drafts that fit a target, and names the command to use.

Texts of several kinds are made in every way in turn. A text that the time cuts is taken to continue
as it did in its later half, since a draft must take in the prompt first.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

from grpc_comm.translate import Description
from inference.command import printable, say
from inference.draft_thread import take_short_turns
from inference.errors import InvalidRequest, OutriderError
from inference.extras import is_installed
from inference.files import write_whole
from inference.sampling import SamplingParams
from inference.times import Times
from outrider.client.client import Client, open_client
from outrider.client.connecting import connect_target, full_description, tokenizer_identity
from outrider.client.probing import measure_round_trip
from outrider.doctor.checks import machine
from outrider.measure.account import Account
from outrider.measure.arms import Arm, client_arm, with_again
from outrider.measure.figures import AGAIN, ALL, BASELINE, Row, summarise
from outrider.measure.journal import Journal, RunRecord
from outrider.measure.recommend_options import RecommendOptions
from outrider.measure.report import Report
from outrider.measure.run import WARM_UP_TOKENS, Run, Task
from outrider.models.machine import processor
from outrider.models.models_here import ModelHere, find_models
from outrider.models.published_models import fetch_agreed, judged, published_for
from outrider.options.groups import DeviceOptions
from outrider.options.roles import DraftRole
from outrider.terminal.tables import aligned
from outrider.text.completion import Completion, Request
from outrider.text.limits import Limit, dear_law, limit_of

MAX_DRAFTS = 3
"""Drafts that are measured: the smallest."""

FIRST = 128
"""Tokens of a command's first text, part of which comes before the draft is loaded."""

PLANNED = 0.9
"""Share of the time that texts take; prompts take the rest."""

WORTH = 1.05
"""Speed-up from which a way is recommended."""


class Way(NamedTuple):
    """A way of drafting, ready to draft. flags: those of `outrider run` that ask for it"""

    name: str
    flags: dict[str, Any]
    size: int  # bytes of its weights
    client: Client
    seconds: float  # of loading


def recommend(options: RecommendOptions) -> int:
    """Find drafts, measure, and print. Raises InvalidRequest where nothing can be measured."""
    take_short_turns()
    with connect_target(options.connection) as target:
        there, trip = full_description(target), measure_round_trip(target.probe, say)
    paths = [Path(path) for path in (options.draft_model or "").split(",") if path]
    here = [judged(one, there) for one in find_models(paths)]
    if options.download:
        fetch_agreed(published_for(there.model, here), tokenizer_identity(there))
        here = [judged(one, there) for one in find_models(paths)]
    published = published_for(there.model, here)
    print(f"here: {machine()}, {_computes(options.device)}")
    for one in published:
        print(f"published, not here: {one}", flush=True)
    left_out = {one.name: one.refusal for one in here if one.refusal}
    begun = time.perf_counter()
    with ExitStack() as stack:
        ways = list(loaded(options, here, there, stack, left_out))
        known, last = measure(ways, begun + options.seconds, options.max_new_tokens)
    rows = [row for row in summarise(known.texts, [one.name for one in ways]) if row.kind == ALL]
    best = choose(rows)
    why = "" if best != BASELINE else reason(Times(dict(there.times)), last, trip)
    way = next(one for one in ways if one.name == best)
    line = command(options.of_run(**way.flags))
    title = f"target: {there.model} on {there.device}, round trip {trip * 1e3:.3g} ms"
    speed = _of(rows, best).speed_up
    verdict = [why or f"{best} is the fastest here, {speed} of target-only's speed."]
    loading = [_loading(one, rows) for one in ways]
    below = aligned(list(loading[0]), [[*map(_cell, one.values())] for one in loading])
    report = Report(title, verdict, rows, known, below=[*below, ""])
    for name, refusal in left_out.items():
        print(f"left out: {name}: {refusal}")
    print(report.told(), line, sep="\n")
    if options.as_json is not None:
        record = report.record() | {"round_trip": trip, "ways": loading, "left_out": left_out}
        record |= {"published": list(map(str, published)), "reason": why, "command": line}
        write_whole(Path(options.as_json), json.dumps(record, indent=1) + "\n")
    return 0


def _computes(options: DeviceOptions) -> str:
    """The device that computes drafts, in words. Raises InvalidRequest where it is not here."""
    if not is_installed("torch"):
        return processor()
    from outrider.models.devices import conditions, pick_device

    return conditions(pick_device(options.device)).device


def loaded(
    options: RecommendOptions,
    here: Sequence[ModelHere],
    target: Description,
    stack: ExitStack,
    left_out: dict[str, str],
) -> Iterator[Way]:
    """Load the target alone, copied text alone, and the smallest drafts.

    left_out: is given the reason of a draft that fails. Raises InvalidRequest without a tokenizer.
    """
    sources = [one for one in here if one.drafts_for(tokenizer_identity(target))]
    if not sources:
        raise InvalidRequest(
            f"no model on this machine has the tokenizer of {target.model}: --download fetches a "
            "published one, --draft_model names a directory"
        )
    known = sources[0].as_flag("model")
    asked: list[tuple[str, dict[str, Any], int]] = []
    asked += [(BASELINE, {"draft": "none", **known}, 0)]
    asked += [("copied text", {"draft": "copy", **known}, 0)]
    fit = sorted((one for one in here if not one.refusal), key=lambda one: one.size)
    asked += [(one.name, one.as_flag("draft_model"), one.size) for one in fit[:MAX_DRAFTS]]
    left_out |= {
        one.name: f"only the {MAX_DRAFTS} smallest are measured" for one in fit[MAX_DRAFTS:]
    }
    for name, flags, size in asked:
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


def measure(ways: Sequence[Way], deadline: float, most: int) -> tuple[RunRecord, Completion]:
    """Make texts in every way in turn, until the prompts or the time end. Texts are cut rather than
    that a kind is left out. Returns the texts, and the latest of the last way. Raises
    InvalidRequest for too little time.

    most: tokens of a text
    """
    prompts: list[tuple[str, str]] = json.loads(
        Path(__file__).with_name("prompts.json").read_text(encoding="utf-8")
    )
    client, kinds = ways[0].client, len({kind for kind, _ in prompts})
    tasks = [
        Task("", kind, str(number), partial(_request, client, kind, prompt, most))
        for number, (kind, prompt) in enumerate(prompts)
    ]
    *others, last = (_arm(way) for way in ways)
    latest = list[Completion]()

    def make_last(request: Request, cut: Event) -> Completion:
        latest[:] = [last.make(request, cut)]
        return latest[0]

    arms = with_again([*others, replace(last, make=make_last)])
    record = RunRecord({"settings": {"max_new_tokens": most}, "prompts": {}})
    run = Run(Journal(None, record), arms[:1])
    run.warm_up(tasks[0].request(()))
    begun = time.perf_counter()
    run.warm_up(tasks[0].request(()))
    speed = WARM_UP_TOKENS / (time.perf_counter() - begun)
    seconds = PLANNED * (deadline - time.perf_counter()) / (kinds * len(arms))
    if seconds * speed < WARM_UP_TOKENS:
        raise InvalidRequest(f"--seconds: too few for a target of {speed:.2g} tokens/s")
    Run(Journal(None, record), arms, deadline=deadline, text_seconds=seconds).make(tasks)
    return record, latest[0]


def _arm(way: Way) -> Arm:
    account = Account(way.client.budget.billing, whole=way.client.shares_device)
    return client_arm(way.name, way.client, account)


def _request(client: Client, kind: str, prompt: str, most: int, answers: Sequence[str]) -> Request:
    """Continue code, or answer the prompt where the model can chat."""
    try:
        ids = client.tokenizer.encode(prompt, chat=kind != "code")
    except InvalidRequest:  # no chat template
        ids = client.tokenizer.encode(prompt)
    ids, stop_ids = ids[: client.length - most], client.target.description.stop_ids
    return Request(0, "", ids, SamplingParams(), most, stop_ids)


def choose(rows: Sequence[Row]) -> str:
    """The arm of the largest speed-up; target-only where no other is worth a draft, or lies beyond
    the noise.
    """
    worth = [
        row
        for row in rows
        if row.speed_up is not None and row.arm != AGAIN
        if row.speed_up.mean >= max(WORTH, row.noise.high if row.noise else 0.0)
    ]
    best = max(worth, key=lambda row: row.speed_up.mean if row.speed_up else 0.0, default=None)
    return BASELINE if best is None else best.arm


def _of(rows: Sequence[Row], arm: str) -> Row:
    return next(row for row in rows if row.arm == arm)


def _loading(way: Way, rows: Sequence[Row]) -> dict[str, Any]:
    """Size and loading of a way, and the speed of a command's first text."""
    speed, base = (_of(rows, arm).tokens_per_second.median for arm in (way.name, BASELINE))
    early = min(base * way.seconds, FIRST)  # tokens that come before the draft is loaded
    return {
        "MB": way.size / 1e6,
        "load s": way.seconds,
        f"tokens/s of the first {FIRST}": FIRST / (early / base + (FIRST - early) / speed),
        "arm": way.name,
    }


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


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value or "-")
