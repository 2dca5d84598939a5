"""`outrider prove`: starts a target without caches, generates with and without a draft, and
measures forward passes.

On a Neuron device without --artifact, the check first compares the device's sampling with the
host's; this builds the artefact to serve. This part has not yet been run on hardware.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from compile.plan.memory import gib
from inference.backends.neuron.sdk import has_device, instance_family, memory_peaks
from inference.command import FAILED, UNEQUAL_DEVICE, say
from inference.errors import BadArtifact, Unavailable
from inference.files.artifact import read_manifest
from inference.files.writing import write_whole
from inference.flags.group import flags_of
from inference.loop.draft_thread import take_short_turns
from outrider.measure.arms import BASELINE
from outrider.measure.environment import load
from outrider.measure.figures import ALL, Row, summarise
from outrider.measure.journal import Journal, opened, plan_of
from outrider.measure.report import Report
from outrider.measure.report import verdict as speed_verdict
from outrider.measure.run import Run
from outrider.measure.sets import read_lines
from outrider.measure.testbed import ArmSet, start
from outrider.measure.verbs.graph_times import SHAPES, GraphTimes, time_graphs, times_table
from outrider.measure.verbs.options import ProveOptions
from outrider.options.draft_flags import PRESETS
from outrider.options.groups import SamplingOptions
from outrider.options.network import ConnectionOptions
from outrider.options.roles import TargetRole
from outrider.target.spawn import cold_start, flag_words, role_environment
from outrider.target.target import load_served

TEMPERATURES = (0.0, 0.7, 1.0)
"""Sampling temperatures. Prompt i uses seed i."""

REPEATS = 3
"""Outputs of each prompt, temperature and arm."""

DRAFTED = "with a draft"


def run(options: ProveOptions) -> int:
    """Run the check and publish the report. Returns 0 if all outputs are equal, else 1. Raises the
    error of a failed request, and BadArtifact if the device's sampling differs from the host's.
    """
    out, checks = Path(options.out), list[str]()
    if options.device.startswith("neuron") and options.artifact is None and has_device():
        checks = _check_device(options, out / "artefact")
        options = options.replace(
            artifact=str(out / "artefact"), model=None, target_model=None, dtype=None
        )
    take_short_turns()
    items = [
        item._replace(kind=f"temperature {temperature:g}", temperature=temperature)
        for temperature in TEMPERATURES
        for item in read_lines(options.prompt_text)
    ]
    with opened(out, plan_of(options.plan_settings, items), anew=True) as journal:
        with cold_start(), start(options) as target:
            connection = ConnectionOptions(target_host=target.address)
            arms = ArmSet(options.role, {BASELINE: PRESETS["vanilla"], DRAFTED: {}})
            text = SamplingOptions(max_new_tokens=options.max_new_tokens)
            with arms.opened(journal, connection) as (client, both):
                Run(journal, both, client, text, warm=False).make(items, REPEATS)
        journal.write("end", {"load": load()})
    times = measured_graphs(options)
    report = _report(options, journal, times, checks)
    report.publish(out)
    device = report.rows[0].device
    emulated = times.profile(report.title, f"Measured by outrider prove on {device}.")
    if emulated is not None:
        write_whole(out / "profile.json", f"{json.dumps(asdict(emulated), indent=1)}\n")
        say(f"wrote {out / 'profile.json'}")
    return 0 if report.equal else FAILED


def measured_graphs(options: ProveOptions) -> GraphTimes:
    """Time the target's forward passes, with the rows that SHAPES need unless an artefact fixes
    them. Loads the target into this process, so the served target has to end first.
    """
    stated = options.explicit()
    flags = {name: stated[name] for name in flags_of(TargetRole) if name in stated}
    if options.artifact is None:
        flags["batch"] = max(rows for rows, _ in SHAPES)
    served = load_served(TargetRole(**flags))
    return time_graphs(served.engine.model, served.description.sequence_length)


def _report(
    options: ProveOptions, run: Journal, times: GraphTimes, checks: Sequence[str]
) -> Report:
    rows, fitted, peaks = summarise(run.texts), times.fit(), memory_peaks()
    manifest = None if options.artifact is None else read_manifest(Path(options.artifact))
    return Report(
        verdict(rows),
        rows,
        run,
        times=[(*shape, seconds.value) for shape, seconds in times.seconds.items()],
        below=[
            *checks,
            *memory_lines(peaks),
            *times_table(times, fitted, instance_family() or ""),
            "",
        ],
        data={
            "digest": None if manifest is None else manifest.digest(),
            "checks": list(checks),
            "memory_peaks": peaks,
            "times": times.record(),
            "fit": None if fitted is None else fitted._asdict(),
        },
    )


def memory_lines(peaks: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Format the peak memory of each Neuron core (memory_peaks), to compare with the plan's."""
    return [
        f"memory of {core}: at most {gib(sum(sizes.values()))} since the driver was loaded "
        f"({', '.join(f'{name} {gib(size)}' for name, size in sizes.items())})"
        for core, sizes in peaks.items()
    ]


def verdict(rows: Sequence[Row]) -> list[str]:
    """Format two lines: whether all outputs are equal, and the speed."""
    drafted = [row for row in rows if row.arm == DRAFTED and row.kind != ALL]
    texts, equal = sum(row.compared for row in drafted), sum(row.equal for row in drafted)
    return [
        f"{'proved' if equal == texts else 'NOT proved'}: {equal} of {texts} texts equal "
        f"target-only's, at temperatures {', '.join(f'{value:g}' for value in TEMPERATURES)}.",
        speed_verdict(rows),
    ]


def _check_device(options: ProveOptions, out: Path) -> list[str]:
    """Compare the noise and choices of a Neuron device with the host's, in a process, since
    its exit releases the cores. Returns the lines that it printed. Raises BadArtifact for a
    difference, and Unavailable if the process fails.
    """
    flags = {"model": options.target_name, "target": instance_family(), "out": out}
    flags |= {"dtype": options.dtype}
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "compile.neuron.check", *flag_words(flags)],
        env=role_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    last = ""
    for line in process.stderr:  # progress of a build, and the reason of a failure
        last = line.strip() or last
        say(line.rstrip())
    lines = process.communicate()[0].splitlines()
    if process.returncode == UNEQUAL_DEVICE:
        raise BadArtifact(f"the device does not compute what the host does: {lines[-1]}")
    if process.returncode:
        raise Unavailable(f"the device could not be checked: {last.removeprefix('error: ')}")
    return lines
