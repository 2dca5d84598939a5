"""`outrider bench`: every prompt of some sets by target-only and by presets, in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from inference.draft_thread import take_short_turns
from outrider.measure.arms import BASELINE, FUSED
from outrider.measure.environment import environment
from outrider.measure.figures import summarise
from outrider.measure.journal import Journal, RunRecord, opened, plan_of
from outrider.measure.link import LinkShape
from outrider.measure.options import BenchOptions, CompareOptions
from outrider.measure.report import Report
from outrider.measure.sets import Item
from outrider.measure.tasks import tasks_of
from outrider.measure.testbed import ArmSet, Beside, target_of
from outrider.measure.verdict import verdict
from outrider.options.draft_flags import PRESETS

MIN_PROMPTS, MIN_TOKENS = 30, 128
"""Minimum prompts of a kind, and tokens of their texts, for claiming a figure."""


def run(options: BenchOptions, beside: Beside = lambda client, arms: nullcontext(arms)) -> int:
    """Measure the presets, and write and print the report."""
    commands = {name: command(name) for name in PRESETS}
    return compare_arms(options, commands | {BASELINE: command("vanilla")}, beside)


def command(preset: str) -> str:
    """The command that decodes as this preset does."""
    more = {"hybrid": "", "eagle_sd": " --preset eagle_sd, with outrider fused_target"}
    return f"outrider run{more.get(preset, f' --preset {preset}')}"


def compare_arms(
    options: BenchOptions | CompareOptions,
    commands: Mapping[str, str],
    beside: Beside,
    below: Sequence[str] = (),
) -> int:
    """Generate the missing texts of all arms, and write and print the report in any case.

    commands: by the names of the arms
    beside: adds further arms
    below: lines below the table
    """
    items, out = options.items(), None if options.out is None else Path(options.out)
    if not options.elsewhere and not options.emulate:
        options = options.replace(measure_first=True)
    take_short_turns()
    plan = plan_of(options.plan_settings, {item.place: item for item in items})
    with opened(out, plan) as journal:
        try:
            if not journal.run.ends:
                _measure(options, items, journal, beside)
        finally:  # an interrupted run gets a report, too
            if journal.run.texts:
                rows = summarise(journal.run.texts, [*options.arms])
                remarks = [*_remarks(journal.run)]
                Report(verdict(rows, commands), rows, journal.run, remarks, below).publish(out)
    return 0


def _measure(
    options: BenchOptions | CompareOptions,
    items: Sequence[Item],
    journal: Journal,
    beside: Beside,
) -> None:
    """Generate the missing texts over every link."""
    arms = ArmSet(options.role, options.arms, optional=(FUSED,), beside=beside)
    with target_of(options, options.arms) as (there, target):
        for trip in options.rtt:
            link = LinkShape(trip / 2, options.bandwidth)
            tasks = partial(tasks_of, items, options.text)
            arms.measure(journal, there, tasks, repeats=options.num_runs, link=link)
    emulation = None if target is None else target.emulation
    journal.write("end", {"load": environment()["load"], "emulation": emulation})


def _remarks(run: RunRecord) -> Iterator[str]:
    """Yield remarks on how to judge the figures."""
    settings, prompts = run.plan["settings"], run.plan["prompts"]
    limit = settings["max_new_tokens"]
    counts = sorted(Counter(kind for _, kind, _ in {key[:3] for key in run.texts}).items())
    needed = MIN_PROMPTS if limit >= MIN_TOKENS else 1 + len(prompts)
    if few := ", ".join(f"{count} {kind}" for kind, count in counts if count < needed):
        yield (
            f"Too few for a claim: {few} prompts of up to {limit} tokens; {MIN_PROMPTS} x "
            f"{MIN_TOKENS} are needed."
        )
    if any("/code/" in name for name in prompts):
        yield "Code as in HumanEval flatters copies: 64 % of an answer repeats its prompt."
    if lacking := len(prompts.keys() - {key.prompt for key in run.texts}):
        why = "these models cannot take them" if run.ends else "the same command continues it"
        yield f"{lacking} of {len(prompts)} prompts are left out: {why}."
    if settings["emulate"]:
        kept = run.ends[-1]["emulation"] if run.ends else None
        yield (
            f"The target's forward passes take the times of {settings['emulate']}"
            f"{f' ({kept})' if kept else ''}; drafts run on this machine."
        )
