"""A plan as text: a one-line summary, the graphs with their times, and the memory of a core."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compile.plan.device import GIB, Device, device_of
from compile.plan.memory import ITEM, Footprint, compilers_at_once, gib, passes_of
from compile.plan.pass_seconds import BAND, pass_seconds
from compile.spec import CompileSpec, least_nodes
from inference.files.artifact import Bucket, DraftBucket, RoundBucket, features_of
from inference.model.checkpoints.config import ModelConfig

_ESTIMATED = {
    "programs": "estimated from the weights that each graph computes with",
    "rings": "descriptors of what the graphs move, 2 KiB at once",
    "reserve": "a tenth, for scratchpad, collectives and constants",
}
_WEIGHTS_A_SECOND = 27_000_000
"""Weights that a compiler processes per second. A published build of Llama-3.2-1B for one core of
trn1 took 45 s for the one-token graph.
"""
_GUESSES = 16
"""Tree size whose time is in the summary; if there is none, the nearest size."""


def verdict(spec: CompileSpec, config: ModelConfig, need: Footprint) -> str:
    """Return the summary: whether the plan fits, the time of a call, the time to compile."""
    device = device_of(spec.target)
    memory = f"{need.total / GIB:.1f} of {device.memory / GIB:.3g} GiB"
    clauses = [f"fits {device.instance(spec.tensor_parallel)}: {memory}"]
    if spec.target != "cpu":
        clauses[0] += " a core"
        trees = [bucket for bucket in spec.buckets if bucket.everywhere and bucket.rows == 1]
        tree = min(trees or spec.buckets, key=lambda bucket: abs(bucket.nodes - _GUESSES))
        time = pass_seconds(config, spec, tree)
        band = f" (within {BAND:.0%})" if time and time.seconds else ""
        clauses.append(f"{time} with {tree.nodes} guesses{band}")
        minutes = _compile_minutes(config, spec)
        words = f"{minutes / 60:.1f} h" if minutes >= 90 else f"{max(minutes, 1):.0f} min"
        clauses.append(f"about {words} to compile here (within a factor of 3)")
    return "; ".join(clauses)


def _compile_minutes(config: ModelConfig, spec: CompileSpec) -> float:
    """Estimate the minutes to compile all graphs locally, from one published build."""
    minutes = [
        sum(run.weights(spec) for run in passes_of(config, spec, bucket)) / _WEIGHTS_A_SECOND / 60
        for bucket in spec.graphs
    ]
    return max(*minutes, sum(minutes) / compilers_at_once(spec.target))


def describe(spec: CompileSpec, config: ModelConfig, need: Footprint) -> Iterator[str]:
    """Yield the lines of the complete plan."""
    device = device_of(spec.target)
    shared = f", {spec.tensor_parallel} cores" if spec.tensor_parallel > 1 else ""
    yield (
        f"{spec.model} for {spec.target} ({device.instance(spec.tensor_parallel)}{shared}), "
        f"{spec.dtype}"
    )
    if spec.fused is not None:
        yield f"beside it {spec.fused.model}: every round drafts a {spec.fused.shape}"
    if spec.features:
        item = ITEM[spec.dtype] * config.hidden_size * len(spec.features)
        yield f"{features_of(spec.features)} with each node: {item / 1024:.4g} KiB"
    slots = (
        f"{spec.cache_slots} slots (for {spec.sequence_length} tokens, a tree of "
        f"{spec.max_tree_nodes} nodes, and padding)"
    )
    yield f"cache: {spec.rows} rows of {slots}" if spec.rows > 1 else f"cache: one row of {slots}"
    yield ""
    yield from _graphs(spec, config)
    yield ""
    yield from _memory(need, device)
    if spec.target in ("trn1", "inf2") and spec.fused is None:
        yield (
            f"  while loading       up to {gib(2 * need.weights)}: the weights twice, before any "
            "program (not yet measured)"
        )


def _graphs(spec: CompileSpec, config: ModelConfig) -> Iterator[str]:
    """Yield a line for each graph: its name, the time of a call, and its purpose."""
    yield f"{len(spec.graphs)} graphs"
    for bucket in spec.graphs:
        time = pass_seconds(config, spec, bucket)
        yield f"  {bucket.name:<34}{time or ''!s:>13}  {purpose(spec, bucket)}"
    if spec.target != "cpu":
        yield basis(spec)


def basis(spec: CompileSpec) -> str:
    """Return lines about the source and the error of a target's times."""
    if spec.target == "trn3" or (spec.target == "trn2" and spec.tensor_parallel != 4):
        return (
            "times: a range, since nothing published fits it (docs/neuron-pass.md); not yet run "
            "on hardware"
        )
    return (
        f"times: from passes that others published, within {BAND:.0%} (docs/neuron-pass.md); not "
        "yet run on hardware"
    )


def _memory(need: Footprint, device: Device) -> Iterator[str]:
    where = "" if device.target == "cpu" else " of a core"
    yield (
        f"memory{where}: {gib(need.total)} of {gib(device.memory)} "
        f"({need.total / device.memory:.1%})"
    )
    notes = {"largest activation": need.largest, **_ESTIMATED}
    for name, size in need.parts.items():
        if size:
            what = f" ({notes[name]})" if name in notes else ""
            yield f"  {name:<18}  {gib(size)}{what}"


def purposes(spec: CompileSpec, graphs: Sequence[Bucket]) -> Iterator[str]:
    """Yield a line for each of the given graphs: its name and purpose."""
    for bucket in graphs:
        yield f"  {bucket.name:<34}{purpose(spec, bucket)}"


def purpose(spec: CompileSpec, bucket: Bucket) -> str:
    """Return the purpose of a graph in words."""
    if isinstance(bucket, RoundBucket):
        what = f"rounds in one graph: a {bucket.shape} is drafted, verified and accepted"
    elif not bucket.everywhere:
        reader = "the draft's prompts" if isinstance(bucket, DraftBucket) else "prompts"
        what = f"{reader}, {bucket.nodes} tokens a call"
    elif bucket.nodes <= least_nodes(spec.dtype):
        what = "the target alone"
    else:
        what = f"trees of up to {bucket.nodes} nodes"
    clauses = [what]
    if spec.rows > 1:
        clauses.append("one session" if bucket.rows == 1 else f"up to {bucket.rows} sessions")
    if bucket.slots < spec.capacity:
        clauses.append(f"while {bucket.slots} slots hold a session")
    if bucket.everywhere:
        clauses.append("any temperature" if bucket.sampled else "temperature 0")
    if bucket.masked:
        clauses.append("with masks")
    return ", ".join(clauses)
