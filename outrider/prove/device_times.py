"""Times of a target's forwards on this machine: measured, beside a plan's, and as a profile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from compile.plan.graph_time import graph_time
from compile.spec import CompileSpec
from inference.artifact import Manifest
from inference.backends.timed import TimeProfile
from inference.errors import Unavailable
from inference.model.config import parse_config
from inference.planner.profile_files import Subject, read_profile
from inference.times import Shape


def kept_times(directory: Path) -> tuple[Subject, dict[Shape, float]]:
    """The times that a target has kept in this cache. Raises Unavailable where it kept none."""
    for path in sorted(directory.glob("target-*.json")):
        subject, times = read_profile(path)
        if subject.part == "target":
            return subject, times
    raise Unavailable(f"the target kept no times in {directory}")


def planned_times(manifest: Manifest) -> dict[Shape, float]:
    """Seconds of the artefact's trees by rows and nodes, as its plan computed them. Of graphs that
    differ in the slots they read, those of the fewest. None for a CPU, which has no such forecast.
    """
    if manifest.target == "cpu":
        return {}
    config, spec = parse_config(manifest.config), CompileSpec.of(manifest)
    graphs = sorted(manifest.buckets, key=lambda bucket: -bucket.slots)
    return {
        (bucket.rows, bucket.nodes): graph_time(config, spec, bucket).planned
        for bucket in graphs
        if bucket.everywhere
    }


def fit_profile(name: str, subject: Subject, times: Mapping[Shape, float]) -> TimeProfile:
    """The profile of these times, for --emulate: the longer of the weights' time and the nodes'.

    The time of a node is the one that comes nearest to all measured forwards.

    times: seconds by rows and by nodes of each row; the narrowest forward gives the weights' time
    """
    least = times[min(times)]
    shapes = {(rows * nodes): seconds for (rows, nodes), seconds in times.items()}
    slopes = [seconds / nodes for nodes, seconds in shapes.items()]
    errors = {slope: _error(least, slope, shapes) for slope in slopes}
    node = min(errors, key=errors.__getitem__)
    worst = max(abs(max(least, n * node) / seconds - 1) for n, seconds in shapes.items())
    return TimeProfile(
        name,
        f"Measured by outrider prove on {subject.device}, {subject.dtype}, {subject.threads} "
        f"threads, at a context of {subject.context} slots.",
        f"That context costs nothing, and rows cost as nodes do. A measured forward is off by "
        f"{worst:.0%} at most.",
        pass_seconds=least,
        slot_seconds=0.0,
        node_seconds=node,
        node_slot_seconds=0.0,
        rows=tuple(sorted({rows for rows, _ in times})),
        nodes=tuple(sorted({nodes for _, nodes in times})),
        slot_step=1,
    )


def _error(least: float, node: float, shapes: Mapping[int, float]) -> float:
    """Sum of squared logarithms of computed over measured seconds."""
    return sum(math.log(max(least, n * node) / seconds) ** 2 for n, seconds in shapes.items())
