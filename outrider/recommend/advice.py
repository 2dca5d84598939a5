"""Measures ways of drafting side by side, and names the command to use.

Texts of several kinds are made in every way in turn, with the prompt's keys warm at the target and
the draft loaded. A text that the time cuts is taken to go on as it did in its later half, since a
draft must take in the prompt first. The figures are what to expect of whole texts.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from pathlib import Path
from threading import TIMEOUT_MAX, Event, Timer
from typing import Any, NamedTuple

import numpy as np

from grpc_comm.translate import Description
from inference.command import printable, say
from inference.cost.billing import PER_MILLION
from inference.draft_thread import take_short_turns
from inference.errors import InvalidRequest, OutriderError
from inference.extras import is_installed
from inference.files import write_whole
from inference.planner.prices import Usage
from inference.sampling import SamplingParams
from inference.times import LatencyModel
from outrider.client.client import Client, open_client
from outrider.client.connecting import connect_target, full_description, tokenizer_identity
from outrider.client.probing import measure_round_trip
from outrider.doctor.checks import machine
from outrider.models.machine import processor
from outrider.models.models_here import ModelHere, find_models
from outrider.options.groups import DeviceOptions
from outrider.options.roles import DraftRole
from outrider.recommend.fitting import fetch_agreed, judged, published_for
from outrider.recommend.recommend_options import RecommendOptions
from outrider.terminal.live_text import silent
from outrider.terminal.tables import aligned
from outrider.text.completion import Completion, Request
from outrider.text.limits import Limit, dear_law, limit_of

MOST = 3
"""Drafts that are measured: the smallest."""

LEAST, FIRST = 8, 128
"""Tokens of a text that says something of drafting, and of a command's first text."""

PLANNED = 0.9
"""Share of the time that texts take; prompts take the rest."""

WORTH = 1.05
"""Speed over that of the target alone from which a way is recommended."""


class Way(NamedTuple):
    """A way of drafting, ready to draft, and its texts with the kinds of their prompts.

    flags: those of `outrider run` that ask for it
    """

    name: str
    flags: dict[str, Any]
    size: int  # bytes of its weights
    client: Client
    seconds: float  # of loading
    texts: list[tuple[str, Completion]]


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
    print(f"target: {there.model} on {there.device}, round trip {trip * 1e3:.3g} ms")
    print(f"here: {machine()}, {_computes(options.device)}")
    for one in published:
        print(f"published, not here: {one}", flush=True)
    left_out = {one.name: one.refusal for one in here if one.refusal}
    begun = time.perf_counter()
    with ExitStack() as stack:
        ways = list(loaded(options, here, there, stack, left_out))
        measure(ways, begun + options.seconds, options.max_new_tokens)
        rows = [figures(way, ways[0], options.max_new_tokens) for way in ways]
    best, times = choose(rows), LatencyModel(dict(there.times))
    why = "" if best else reason(times, ways[-1].texts[-1][1], trip)
    line = command(options.of_run(**ways[best].flags))
    for name, said in left_out.items():
        print(f"left out: {name}: {said}")
    print(*aligned(list(rows[0]), [[*map(_cell, row.values())] for row in rows]), sep="\n")
    print(why or f"the quickest is {ways[best].name}:", line, sep="\n")
    if options.as_json is not None:
        record = {"target": there.model, "round_trip": trip, "ways": rows, "left_out": left_out}
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
    """Load the target alone, copies alone, and the smallest drafts.

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
    asked += [("target alone", {"target_only": True, **known}, 0)]
    asked += [("copies alone", {"draft": "none", **known}, 0)]
    fit = sorted((one for one in here if not one.refusal), key=lambda one: one.size)
    asked += [(one.name, one.as_flag("draft_model"), one.size) for one in fit[:MOST]]
    left_out |= {one.name: f"only the {MOST} smallest are measured" for one in fit[MOST:]}
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
            yield Way(name, flags, size, client, time.perf_counter() - begun, [])


def measure(ways: Sequence[Way], deadline: float, longest: int) -> None:
    """Make texts in every way in turn, until the prompts or the time end. The first way is the
    target alone; before each turn it makes one token, so that the prompt is warm for all. Texts are
    cut rather than that a kind is left out. Raises InvalidRequest for too little time.

    longest: tokens of a text
    """
    prompts: list[tuple[str, str]] = json.loads(
        (Path(__file__).parent / "prompts.json").read_text(encoding="utf-8")
    )
    kinds = len({kind for kind, _ in prompts})
    _text(ways[0].client, *prompts[0], 1)
    speed = _text(ways[0].client, *prompts[0], LEAST).tokens_per_second
    seconds = PLANNED * (deadline - time.perf_counter()) / (kinds * len(ways))
    if seconds * speed < LEAST:
        raise InvalidRequest(f"--seconds: too few for a target of {speed:.2g} tokens/s")
    slowest = 0.0
    for turn, (kind, prompt) in enumerate(prompts):
        begun = time.perf_counter()
        if begun + slowest > deadline:
            break
        _text(ways[0].client, kind, prompt, 1)
        for way in [*ways[turn % len(ways) :], *ways[: turn % len(ways)]]:
            way.texts.append((kind, _text(way.client, kind, prompt, longest, seconds)))
        slowest = max(slowest, time.perf_counter() - begun)


def _text(
    client: Client, kind: str, prompt: str, tokens: int, seconds: float = TIMEOUT_MAX
) -> Completion:
    """Go on with code, or answer the prompt where the model can chat. Waits until the draft is
    silent.

    seconds: the text is cut after these
    """
    try:
        ids = client.tokenizer.encode(prompt, chat=kind != "code")
    except InvalidRequest:  # no chat template
        ids = client.tokenizer.encode(prompt)
    ids, stop_ids = ids[: client.length - tokens], client.target.description.stop_ids
    asked = Request(0, "", ids, SamplingParams(), tokens, stop_ids)
    cut = Event()
    timer = Timer(seconds, cut.set)
    timer.start()
    try:
        done = client.complete(asked, silent, cut).raise_failure()
    finally:
        timer.cancel()
    rows = client.wait()
    if rows is not None:
        rows.settle()
    return done


def figures(way: Way, alone: Way, longest: int) -> dict[str, Any]:
    """Expected figures of a way, by the heads of the table.

    alone: the target's own
    longest: tokens of a text
    """
    texts = [done for _, done in way.texts]
    usage = reduce(Usage.plus, (done.usage for done in texts))
    tokens, dollars = sum(len(done.token_ids) for done in texts), way.client.budget.price(usage)
    speed, base = _speed(texts, longest), _speed([done for _, done in alone.texts], longest)
    drawn = np.random.default_rng(0).integers(len(texts), size=(2000, len(texts)))
    low, high = np.quantile(
        [_speed([texts[at] for at in one], longest) for one in drawn], [0.025, 0.975]
    )
    early = min(base * way.seconds, FIRST)  # tokens that come before the draft is loaded
    return {
        "texts": len(texts),
        "MB": way.size / 1e6,
        "tokens/s": speed,
        "from": float(low),
        "to (95%)": float(high),
        "x alone": speed / base,
        **{
            kind: _speed([done for one, done in way.texts if one == kind], longest)
            for kind, _ in way.texts
        },
        "bytes/token": (usage.bytes_up + usage.bytes_down) / tokens,
        "$/1M": None if dollars is None else dollars / tokens * PER_MILLION,
        "load s": way.seconds,
        f"first {FIRST}": FIRST / (early / base + (FIRST - early) / speed),
        "way": way.name,
    }


def _speed(texts: Sequence[Completion], longest: int) -> float:
    """Tokens a second over these texts, whole."""
    tokens, seconds = zip(*(whole(done, longest) for done in texts), strict=True)
    return float(sum(tokens) / sum(seconds))


def whole(done: Completion, longest: int) -> tuple[int, float]:
    """Tokens and seconds of a text of up to `longest` tokens. One that was cut goes on as it did
    behind the middle of its tokens.
    """
    made = np.cumsum(done.chunk_tokens)
    if done.finish_reason != "cancelled" or len(made) < 2:
        return len(done.token_ids), done.seconds
    middle = min(int(np.searchsorted(made, made[-1] / 2)), len(made) - 2)
    rate = (made[-1] - made[middle]) / (done.arrivals[-1] - done.arrivals[middle])
    return longest, float(done.arrivals[-1] + (longest - made[-1]) / rate)


def choose(rows: Sequence[Mapping[str, Any]]) -> int:
    """Index of the quickest way; 0, the target alone, where no other is worth a draft."""
    best = max(range(len(rows)), key=lambda index: float(rows[index]["tokens/s"]))
    return best if rows[best]["x alone"] >= WORTH else 0


def reason(times: LatencyModel, drafted: Completion, round_trip: float) -> str:
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
