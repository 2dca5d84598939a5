"""`outrider compare`: architectures side by side, and what follows. It claims nothing
that was not measured in this call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

from inference.command import say
from outrider.measure.architectures import ARCHITECTURES, FUSED, HYBRID, Choice, Setting
from outrider.measure.arms import with_again
from outrider.measure.compare_options import CompareOptions
from outrider.measure.environment import environment, start_record
from outrider.measure.figures import summarise
from outrider.measure.journal import Journal, opened, plan_of
from outrider.measure.report import Report
from outrider.measure.run import Run, Task
from outrider.measure.testbed import Testbed, testbed
from outrider.measure.verdict import commands, verdict
from outrider.text.completion import Request


def run_comparison(options: CompareOptions) -> int:
    """Measure once for each profile of --emulate, print, and write the files."""
    for profile in options.emulate or (None,):
        directory = None
        if options.out is not None:
            several = profile is not None and len(options.emulate) > 1
            directory = Path(options.out) / (Path(profile or "").stem if several else "")
        report = compare(options, profile, directory)
        print(report.told())
        for path in report.write(directory) if directory is not None else ():
            say(f"wrote {path}")
    return 0


def compare(options: CompareOptions, profile: str | None, directory: Path | None = None) -> Report:
    """Run the comparison.

    profile: of --emulate, the device whose times the started target takes
    directory: of the run, which is continued where it was ended before its last text
    """
    choices = dict[str, Choice]()
    with testbed(options, profile) as ready:
        settings = {name: value for name, value in options.values().items() if name not in _CALL}
        settings = json.loads(json.dumps(settings, default=lambda one: Setting(one).label))
        tasks = [_task(request) for request in ready.requests]
        prompts = {f"/text/{one.index}": list(one.ids) for one in ready.requests}
        plan = plan_of(settings | {"emulate": profile}, prompts)
        with opened(directory, plan, replace_finished=True) as journal:
            for trip in options.rtt:
                choices |= _measure(ready, journal, tasks, trip)
            journal.write("end", {"load": environment()["load"]})
            known = journal.known
    rows = summarise(known.texts, list(choices))
    first = options.target_host is None and not options.emulate
    return Report(
        title=_title(ready),
        verdict=verdict(rows, choices, curve=bool(options.cs), shared=first),
        rows=rows,
        run=known,
        remarks=[ready.account.words, *_remarks(ready, profile, choices)],
        below=[*commands(choices), ""],
        labels={HYBRID: " (default)"},
        data={"arms": {name: one.record() for name, one in choices.items()}},
    )


_CALL = ("out", "debug")
"""Flags of a call that change nothing of what is measured."""


def _task(request: Request) -> Task:
    return Task("", "text", str(request.index), lambda answers: request)


def _measure(
    ready: Testbed, journal: Journal, tasks: Sequence[Task], trip: float
) -> dict[str, Choice]:
    """Make the texts over one link. Returns the arms by name."""
    options = ready.options
    with ready.bench(trip) as bench:
        chosen = [one for one in ARCHITECTURES if one.name in options.chosen]
        choices = {one.name: one for each in chosen for one in each.choices(bench)}
        say(f"round trip {trip:g} ms: {', '.join(choices)}")
        journal.start(start_record(bench.target, {"draft": ready.found.fingerprint()},
                                   shared=options.target_host is None))  # fmt: skip
        arms = with_again([one.arm(bench) for one in choices.values()])
        run = Run(journal, arms, trip)
        run.warm_up(ready.requests[0])
        run.make(tasks, range(options.num_runs))
    return choices


def _title(ready: Testbed) -> str:
    text, prompts, runs = ready.options.pair.text, len(ready.requests), ready.options.num_runs
    return (
        f"{ready.found.name} for {ready.target.model} on {ready.target.device}; "
        f"{date.today().isoformat()}; temperature {text.temperature:g}; "
        f"{prompts * runs} texts each ({prompts} prompts, {runs} runs)"
    )


def _remarks(ready: Testbed, profile: str | None, choices: dict[str, Choice]) -> Iterator[str]:
    """Yield what a reader needs to judge the results."""
    options, run = ready.options, {one.architecture.name for one in choices.values()}
    if profile:
        kept = (ready.started and ready.started.emulation) or "it did not say how well it kept them"
        yield (
            f"The target's passes take emulated times ({kept}); drafts, at the target too, and "
            "both programs are this machine's."
        )
    if options.target_host is None:
        yield (
            "Draft and target share this machine's cores: of synchronous rounds, forward passes, "
            "acceptance and bytes carry over to other machines; "
            + ("times of the draft do not." if profile else "tokens/s do not.")
        )
    if any(options.rtt) or options.bandwidth:
        yield "Round trips are emulated by a proxy on this machine, beyond its own."
    if FUSED in options.chosen and FUSED not in run:
        yield "fused was not run: the target has no draft beside it (--role fused_target)"
    if weighed := [one.objective for one in ready.positions if one.weight]:
        yield f"--cs weighs speed against {weighed[0]}."
    if options.out is None:
        yield "--out DIR: all figures, differing texts and plots."
