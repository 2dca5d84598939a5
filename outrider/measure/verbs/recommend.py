"""`outrider recommend`: measures the drafts that fit a target, and prints the best command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpc_comm.translate import Description
from inference.command import say
from inference.errors import InvalidRequest
from inference.loop.draft_thread import take_short_turns
from inference.times import Times
from outrider.client.connecting import (
    connect_target,
    full_description,
    measure_round_trip,
    tokenizer_identity,
)
from outrider.doctor import machine
from outrider.measure.figures import Row, summarise, totals
from outrider.measure.journal import Journal, plan_of
from outrider.measure.report import Report
from outrider.measure.run import AGAIN, BASELINE, Run
from outrider.measure.sets import read_set
from outrider.measure.testbed import ArmSet
from outrider.measure.verbs.options import Flags, MeasuredTexts, RecommendOptions
from outrider.models.catalog.models_here import ModelHere, find_models, judged, published_for
from outrider.target.spawn import flag_words
from outrider.text.completion import Completion
from outrider.text.limits import Limit, arithmetic_reason, limit_of

MAX_DRAFTS = 3
"""Maximum number of drafts to measure, smallest first."""

KINDS, SAMPLES = ("chat", "code", "edits", "summaries"), 2
"""Kinds of prompts from the small set, and the number of prompts of each kind."""

SECONDS = 60.0
"""Seconds after which no further prompt is started."""

COPIED = "copied text"
"""Name of the arm that drafts by n-gram copying, without a model."""

WORTH = 1.05
"""Minimum speed-up for recommending a draft."""


def run(options: RecommendOptions) -> int:
    """Find drafts, measure them, and publish the report. Returns 0. Raises InvalidRequest if
    nothing could be measured.
    """
    take_short_turns()
    with connect_target(options) as target:
        remote, trip = full_description(target), measure_round_trip(target.probe, say)
    paths = [Path(path) for path in (options.draft_model or "").split(",") if path]
    models = [judged(model, remote) for model in find_models(paths)]
    published = [str(model) for model in published_for(remote.model, models)]
    print(f"here: {machine()}", *(f"published, not here: {name}" for name in published), sep="\n")
    arms, left_out = find_arms(models, remote)
    drafts = ArmSet(options.role, arms, optional=arms.keys() - {BASELINE, COPIED})
    items = [item for item in read_set(None, SAMPLES) if item.kind in KINDS]
    text, journal = MeasuredTexts(max_new_tokens=options.max_new_tokens), Journal(plan_of({}, []))
    with drafts.opened(journal, options) as (client, ours):
        run = Run(journal, ours, client, text, seconds=SECONDS)
        run.make(items)
    rows = totals(summarise(journal.texts, [*arms]))
    if not rows:
        raise InvalidRequest(f"no text was generated: every prompt is too long for {remote.model}")
    best = choose(rows)
    speed_up = next(row.speed_up for row in rows if row.arm == best)
    verdict = f"{best} is the fastest here, {speed_up} of target-only's speed."
    if best == BASELINE:
        last = [run.latest[name] for name in arms if name in run.latest][-1]
        verdict = reason(Times(dict(remote.times)), last, trip)
    line = command(options.of_run(arms[best]))
    remarks = [f"Left out: {name}: {why}" for name, why in left_out.items()]
    data = {"left_out": left_out, "published": published, "command": line}
    report = Report([verdict], rows, journal, remarks, data=data)
    report.publish(None if options.out is None else Path(options.out))
    print(line)
    return 0


def find_arms(
    models: Sequence[ModelHere], target: Description
) -> tuple[dict[str, Flags], dict[str, str]]:
    """Return the flags of `outrider run` by arm name (the target alone, copied text, and the
    smallest drafts that fit), and by model name, why other models are left out. Raises
    InvalidRequest if no model on this machine has the target's tokenizer.
    """
    identity = tokenizer_identity(target)
    tokenizer = next(
        (model.as_flag("model") for model in models if model.drafts_for(identity)), None
    )
    if tokenizer is None:
        raise InvalidRequest(
            f"no model on this machine has the tokenizer of {target.model}: --draft_model names a "
            "directory, and `outrider up --target_host HOST` fetches a published draft"
        )
    left_out = {model.name: model.refusal for model in models if model.refusal}
    drafts = sorted((model for model in models if not model.refusal), key=lambda model: model.size)
    for model in drafts[MAX_DRAFTS:]:
        left_out[model.name] = f"only the {MAX_DRAFTS} smallest are measured"
    arms: dict[str, Flags] = {BASELINE: {"draft": "none", **tokenizer}}
    arms |= {COPIED: {"draft": "copy", **tokenizer}}
    arms |= {model.name: model.as_flag("draft_model") for model in drafts[:MAX_DRAFTS]}
    return arms, left_out


def choose(rows: Sequence[Row]) -> str:
    """Return the arm with the largest speed-up, or target-only if all are below WORTH or noise."""
    worth = {
        row.arm: row.speed_up.value
        for row in rows
        if row.speed_up is not None and row.arm != AGAIN
        if row.speed_up.value >= max(WORTH, row.noise.high if row.noise else 0.0)
    }
    return max(worth, key=worth.__getitem__, default=BASELINE)


def reason(times: Times, drafted: Completion, round_trip: float) -> str:
    """Say why no draft is faster: nodes cost too much in forward passes, or the output's limit."""
    arithmetic = arithmetic_reason(times)
    limit = Limit.ARITHMETIC if arithmetic else limit_of(drafted, round_trip)
    return f"no draft pays here: {limit.value.format(reason=arithmetic)}"


def command(flags: Mapping[str, Any]) -> str:
    """Return the command line of `outrider run` with these flags."""
    return shlex.join(["outrider", "run", "def main():", *flag_words(flags)])
