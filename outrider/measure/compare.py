"""`outrider compare`: architectures side by side, and a verdict, from this run's measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import date
from functools import partial
from pathlib import Path

from inference.command import say
from inference.errors import InvalidRequest
from outrider.client.client import Client
from outrider.client.connecting import connect_target
from outrider.measure.arms import FUSED, HYBRID, LOCAL_ARMS, Arm, Choice, local_arms
from outrider.measure.environment import environment
from outrider.measure.figures import summarise
from outrider.measure.journal import opened, plan_of
from outrider.measure.options import CompareOptions
from outrider.measure.report import Report
from outrider.measure.tasks import tasks_of
from outrider.measure.testbed import measure, target_of
from outrider.measure.verdict import verdict
from outrider.money.goal import Goal, read_billing, read_goal
from outrider.options.groups import GoalOptions
from outrider.target.spawn import StartedTarget


def run(options: CompareOptions) -> int:
    """Compare, print, and write the files of --out."""
    compare(options).publish(None if options.out is None else Path(options.out))
    return 0


def compare(options: CompareOptions) -> Report:
    """Run the comparison. A run that was ended before its last text is continued. Raises
    InvalidRequest before anything is loaded, for too few texts and for a cost without a price.
    """
    items, local = options.items(), list[Arm]()
    if not options.elsewhere:
        read_positions(options)
        if not options.emulate:
            options = options.replace(measure_first=True)
    plan = plan_of(options.plan_settings, {item.place: item for item in items})
    tasks = partial(tasks_of, items, options.text)

    def in_process(client: Client, arms: list[Arm]) -> AbstractContextManager[list[Arm]]:
        names = [name for name in options.chosen if name in LOCAL_ARMS]
        if names and not local:
            local.extend(local_arms(names, options.local_role(), client.tokenizer))
        return nullcontext([*arms, *local])

    fused = {"draft_model": options.explicit().get("draft_model"), "draft": options.draft}
    role, more = ("fused_target", fused) if FUSED in options.chosen else ("target", {})
    out = None if options.out is None else Path(options.out)
    with opened(out, plan, replace_finished=True) as journal:
        with target_of(options, role, **more) as (there, started):
            with connect_target(there) as target:
                beside = target.description.draft_model
            chosen = [one for one in options.choices() if one.architecture != FUSED or beside]
            arms = {one.name: one.flags for one in chosen if one.preset}
            if not arms:
                raise InvalidRequest("--architectures: one that uses the link is needed")
            for trip in options.rtt:
                say(f"round trip {trip:g} ms: {', '.join(one.name for one in chosen)}")
                clients = measure(
                    options, journal, there, arms, tasks, repeats=options.num_runs,
                    trip=trip, bandwidth=options.bandwidth, beside=in_process,
                )  # fmt: skip
        journal.write("end", {"load": environment()["load"]})
        known = journal.known
    rows = summarise(known.texts, [one.name for one in chosen])
    where, text, draft = clients[0].target.description, options.text, clients[-1].draft
    runs = f"{len(items) * options.num_runs} texts each"
    return Report(
        f"{draft or 'no draft'} for {where.model} on {where.device}; {date.today().isoformat()}; "
        f"temperature {text.temperature:g}; {runs} ({len(items)} prompts)",
        verdict(rows, chosen),
        rows,
        known,
        remarks=[*_remarks(options, started, chosen)],
        below=[*describe_commands(chosen), ""],
        labels={HYBRID: " (default)"},
        data={"arms": {one.name: one.record() for one in chosen}},
    )


def read_positions(options: CompareOptions) -> list[Goal]:
    """The goal of each position of the knob. Raises InvalidRequest where one weighs a price that
    nobody has stated.
    """
    prices = options.prices
    given, billing = prices.explicit(), read_billing(prices)
    return [read_goal(GoalOptions(cs=knob, **given), billing) for knob in options.cs]


def describe_commands(chosen: Sequence[Choice]) -> Iterator[str]:
    """Each arm with the command that decodes in this way, aligned."""
    width = max(len(one.name) for one in chosen)
    yield "Commands, to which the flags that name your models are added:"
    for one in chosen:
        yield f"{one.name:<{width}}  {one.command}"


def _remarks(
    options: CompareOptions, started: StartedTarget | None, chosen: Sequence[Choice]
) -> Iterator[str]:
    """Yield what a reader needs to judge the results."""
    if options.emulate:
        how = (started and started.emulation) or "it did not say how well it kept them"
        yield f"The target's passes take emulated times ({how}); drafts run on this machine."
    if FUSED in options.chosen and all(one.architecture != FUSED for one in chosen):
        yield "fused was not run: the target has no draft beside it (outrider fused_target)"
    if options.out is None:
        yield "--out DIR: all figures, differing texts and plots."
