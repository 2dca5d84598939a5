"""`outrider bench`: every prompt of some sets by target-only and by presets, in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from inference.draft_thread import take_short_turns
from outrider.measure.arms import BASELINE
from outrider.measure.environment import environment
from outrider.measure.figures import summarise
from outrider.measure.journal import RunRecord, opened, plan_of
from outrider.measure.options import BenchOptions
from outrider.measure.report import Report
from outrider.measure.tasks import tasks_of
from outrider.measure.testbed import Beside, measure, target_of
from outrider.options.draft_flags import PRESETS

MIN_PROMPTS, MIN_TOKENS = 30, 128
"""Minimum prompts of a kind, and tokens of their texts, for claiming a figure."""


def run(options: BenchOptions, beside: Beside = lambda client, arms: nullcontext(arms)) -> int:
    """Generate the run's missing texts, and write and print its report in any case."""
    items, out = options.items(), Path(options.out)
    arms = {BASELINE: PRESETS["vanilla"], **options.arms}
    take_short_turns()
    prompts = {item.place: item for item in items}
    with opened(out, plan_of(options.plan_settings, prompts)) as journal:
        try:
            if not journal.known.ends:
                with target_of(options) as (there, _):
                    for trip in options.rtt:
                        measure(
                            options, journal, there, arms, partial(tasks_of, items, options.text),
                            repeats=options.num_runs, trip=trip, bandwidth=options.bandwidth,
                            beside=beside,
                        )  # fmt: skip
                journal.write("end", {"load": environment()["load"]})
        finally:  # an interrupted run gets a report, too
            if journal.known.texts:
                _report(journal.known, [*arms]).publish(out)
    return 0


def _report(run: RunRecord, arms: Sequence[str]) -> Report:
    models, rows = run.starts[0]["models"], summarise(run.texts, arms)
    title = f"{', '.join(arms[1:])} on {models['target']}, {models['device']}"
    return Report(title, [], rows, run, remarks=[*_remarks(run)])


def _remarks(run: RunRecord) -> Iterator[str]:
    """Yield remarks on how to judge the figures."""
    settings, prompts = run.plan["settings"], run.plan["prompts"]
    most = settings["max_new_tokens"]
    counts = sorted(Counter(kind for _, kind, _ in {key[:3] for key in run.texts}).items())
    least = MIN_PROMPTS if most >= MIN_TOKENS else 1 + len(prompts)
    if few := ", ".join(f"{count} {kind}" for kind, count in counts if count < least):
        yield (
            f"Too few for a claim: {few} prompts of up to {most} tokens; {MIN_PROMPTS} x "
            f"{MIN_TOKENS} are needed."
        )
    if any("/code/" in name for name in prompts):
        yield "Code as in HumanEval flatters copies: 64 % of an answer repeats its prompt."
    if lacking := len(prompts.keys() - {key.prompt for key in run.texts}):
        why = "these models cannot take them" if run.ends else "the same command continues it"
        yield f"{lacking} of {len(prompts)} prompts are left out: {why}."
    if settings["emulate"]:
        yield f"The target's forward passes take the times of {settings['emulate']}."
