"""`outrider prove`: starts a target without caches, generates with and without a draft, and
measures forward passes of a few shapes.

On a Neuron device without --artifact, the check first compares the device's sampling with the
host's; this builds the artefact to serve. This part has not yet been run on hardware.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from compile.plan.memory import gib
from compile.plan.report import RATES
from inference.backends import Model
from inference.backends.neuron.sdk import has_device, instance_family, memory_peaks
from inference.command import FAILED, UNEQUAL_DEVICE, say
from inference.errors import BadArtifact, OutriderError, Unavailable
from inference.files.artifact import read_manifest
from inference.files.writing import write_whole
from inference.flags.group import flags_of
from inference.loop.draft_thread import take_short_turns
from inference.planner.profiling import CONTEXT, time_calls
from inference.times import Shape
from inference.times_file import Profile
from outrider.measure.figures import ALL, Interval, Row, median_interval, summarise
from outrider.measure.journal import Journal, load, opened, plan_of
from outrider.measure.report import Report
from outrider.measure.report import verdict as speed_verdict
from outrider.measure.run import BASELINE, Run, progress
from outrider.measure.sets import read_lines
from outrider.measure.testbed import ArmSet, start
from outrider.measure.verbs.options import ProveOptions
from outrider.options.draft_flags import PRESETS
from outrider.options.groups import SamplingOptions
from outrider.options.network import ConnectionOptions
from outrider.options.roles import TargetRole
from outrider.target.spawn import cold_start, flag_words, role_environment
from outrider.target.target import load_served
from outrider.terminal.summary import aligned

CHUNK = 256
"""Nodes of the forward pass that represents a prompt chunk, or fewer if the target has a limit."""

SHAPES: tuple[Shape, ...] = ((1, 1), (1, 16), (1, 64), (4, 16))
"""Rows and nodes of the other forward passes. 1, 16 and 64 nodes show the cost of a node; 4 rows
of 16 nodes, against 1 row of 64, the cost of a row. The chunk is compute-bound.
"""

ROUNDS, CALLS = 3, 5
"""Rounds over all shapes (a disturbance affects only one round), and calls per shape and round."""


class GraphTimes(NamedTuple):
    """Median seconds of forward passes with intervals, by padded rows and nodes.

    failures: why other shapes were not measured
    """

    seconds: Mapping[Shape, Interval]
    failures: Mapping[Shape, str]

    def record(self) -> list[dict[str, Any]]:
        """Return the times as plain data for JSON."""
        measured = [(shape, interval._asdict(), "") for shape, interval in self.seconds.items()]
        failed = [(shape, None, why) for shape, why in self.failures.items()]
        return [
            {"rows": rows, "nodes": nodes, "seconds": seconds, "failure": why}
            for (rows, nodes), seconds, why in [*measured, *failed]
        ]

    def profile(self, name: str, source: str) -> Profile | None:
        """Return these times as a profile for --emulate; None if nothing was measured."""
        shapes = tuple((*shape, time.value) for shape, time in sorted(self.seconds.items()))
        return Profile(name, source, "That context costs nothing.", shapes) if shapes else None


def time_graphs(model: Model, length: int) -> GraphTimes:
    """Measure every shape that the model supports.

    length: maximum positions of the model
    """
    chunk = 1, min(CHUNK, model.max_nodes, model.capacity // 2, length // 2)
    limit = min(model.max_nodes, model.capacity - 1, length - 1)
    shapes, failures = dict[Shape, Shape](), dict[Shape, str]()
    for rows, nodes in [*SHAPES, chunk]:
        if rows > model.rows:
            failures[rows, nodes] = f"the target was loaded with {model.rows} rows"
        elif nodes > limit:
            failures[rows, nodes] = f"the target takes {limit} nodes beside a context"
        else:
            shapes[model.padded(rows, nodes)] = rows, nodes
    samples = {computed: list[float]() for computed in shapes}
    with progress(ROUNDS * len(shapes)) as report:
        for _, (computed, shape) in product(range(ROUNDS), shapes.items()):
            try:
                if computed in samples:
                    samples[computed] += time_calls(model, length, shape, CALLS)
            except (OutriderError, RuntimeError) as error:  # torch and runtimes raise these
                del samples[computed]
                failures[computed] = str(error).splitlines()[0]
            report("forward passes of {} x {} nodes".format(*computed))
    return GraphTimes({shape: median_interval(times) for shape, times in samples.items()}, failures)


def times_table(times: GraphTimes, device: str) -> list[str]:
    """Format the measured times, with intervals, and the deployment plan's rates."""
    cells = []
    for (rows, nodes), seconds in times.seconds.items():
        median, low, high = (f"{value * 1e3:.2f}" for value in seconds)
        cells.append([f"{rows}x{nodes}", f"{median} [{low}, {high}]"])
    lines = [
        *aligned(("shape", "measured ms [95 %]"), cells),
        *(f"{rows}x{nodes}: {why}" for (rows, nodes), why in times.failures.items()),
        f"Rows x nodes at a context of {CONTEXT} slots: medians of {ROUNDS} x {CALLS} calls.",
    ]
    if (rates := RATES.get(device)) is not None:
        lines.append(
            f"The plan's model: {rates.stream / 1e9:.0f} GB/s of weights, keys and values, "
            f"{rates.layer * 1e6:.0f} us a layer, {rates.call * 1e3:.1f} ms a call and "
            f"{rates.node * 1e3:.2f} ms a node."
        )
    return lines


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
    flags = options.explicit(flags_of(TargetRole))
    if options.artifact is None:
        flags["batch"] = max(rows for rows, _ in SHAPES)
    served = load_served(TargetRole(**flags))
    return time_graphs(served.engine.model, served.description.sequence_length)


def _report(
    options: ProveOptions, run: Journal, times: GraphTimes, checks: Sequence[str]
) -> Report:
    rows, peaks = summarise(run.texts), memory_peaks()
    manifest = None if options.artifact is None else read_manifest(Path(options.artifact))
    return Report(
        verdict(rows),
        rows,
        run,
        below=[
            *checks,
            *memory_lines(peaks),
            *times_table(times, instance_family() or ""),
            "",
        ],
        data={
            "digest": None if manifest is None else manifest.digest(),
            "checks": list(checks),
            "memory_peaks": peaks,
            "times": times.record(),
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
