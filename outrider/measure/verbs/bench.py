"""`outrider bench` and `outrider compare`: measure drafting methods in turn on each prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event

from inference.cost.billing import Billing, Figure
from inference.engine.sessions.local_session import LocalSession
from inference.loop.draft_thread import inline, take_short_turns
from inference.text.tokenizer import Tokenizer
from outrider.client.client import Client
from outrider.measure.figures import summarise
from outrider.measure.journal import Journal, load, opened, plan_of
from outrider.measure.report import Report, verdict
from outrider.measure.run import FUSED, FUSED_LOCAL, Arm, Run
from outrider.measure.sets import Item
from outrider.measure.testbed import ArmSet, Beside, target_of
from outrider.measure.verbs.options import BenchOptions, CompareOptions
from outrider.text.completion import Completion, Request, complete, silent

MIN_PROMPTS, MIN_TOKENS = 30, 128
"""Minimum prompts of a kind, and minimum --max_new_tokens, for claiming a figure."""


def run(options: BenchOptions | CompareOptions, beside: Beside = lambda client, arms: arms) -> int:
    """Generate the missing outputs of all arms, and publish the report, even if interrupted.

    beside: adds arms without a client
    """
    items, out = options.items(), None if options.out is None else Path(options.out)
    if not options.elsewhere and not options.emulate:
        options = options.replace(measure_first=True)
    take_short_turns()
    with opened(out, plan_of(options.plan_settings, items)) as journal:
        try:
            if not journal.ends:
                _measure(options, items, journal, beside)
        finally:  # an interrupted run gets a report, too
            if journal.texts:
                rows = summarise(journal.texts, [*options.arms])
                Report([verdict(rows)], rows, journal, [*_remarks(journal)]).publish(out)
    return 0


def _measure(
    options: BenchOptions | CompareOptions, items: Sequence[Item], journal: Journal, beside: Beside
) -> None:
    arms = ArmSet(options.role, options.arms, optional=(FUSED,), beside=beside)
    with target_of(options, options.arms) as (connection, target):
        for trip in options.rtt:
            with arms.opened(journal, connection, trip / 2) as (client, ours):
                Run(journal, ours, client, options, trip).make(items, options.num_runs)
    emulation = None if target is None else target.emulation
    journal.write("end", {"load": load(), "emulation": emulation})


def _remarks(run: Journal) -> Iterator[str]:
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
        emulation = run.ends[-1]["emulation"] if run.ends else None
        yield (
            f"The target's forward passes take the times of {settings['emulate']}"
            f"{f' ({emulation})' if emulation else ''}; drafts run on this machine."
        )


def compare(options: CompareOptions) -> int:
    """Compare the architectures and publish the report. Returns 0."""
    local = list[Arm]()

    def beside(client: Client, arms: list[Arm]) -> list[Arm]:
        if not local:  # loaded once, for all links
            local.extend(local_arms(options, client.tokenizer))
        return [*arms, *local]

    return run(options, beside) if options.in_process else run(options)


def local_arms(options: CompareOptions, tokenizer: Tokenizer) -> list[Arm]:
    """Return arms with the target in this process, alone or with a draft on the same device."""
    from outrider.target.colocated_draft import with_draft
    from outrider.target.target import load_served

    role = options.local_role()
    engine = load_served(role, partial(with_draft, role)).engine

    def make(request: Request, cut: Event, *, colocated: bool) -> Completion:
        order, session = request.order(colocated=colocated), LocalSession(engine)
        done = complete(request, session, inline(), tokenizer, silent, cut, order=order)
        return replace(done, cost=Figure.unavailable("nothing is rented")).raise_failure()

    alone = partial(make, colocated=False)
    return [
        Arm(name, partial(make, colocated=name == FUSED_LOCAL), alone, Billing(), joint=True)
        for name in options.in_process
    ]
