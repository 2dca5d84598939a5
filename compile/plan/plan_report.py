"""Words for a plan: its graphs with their work and times, a rank's memory, and why these graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from compile.ops.pass_time import ERRORS, PUBLISHED, RATES
from compile.plan.device import Device, device_of
from compile.plan.graph_time import GraphTime, graph_time, times_between
from compile.plan.memory import ITEM, Footprint, compilers_at_once, gib, graph_work
from compile.spec import CompileSpec, least_nodes
from inference.artifact import Bucket, DraftBucket, RoundBucket, features_of
from inference.model.config import ModelConfig

_ESTIMATED = {
    "programs": "all taken to be as long as the longest of their kind, and microcode",
    "rings": "descriptors of what the graphs move, 2 KiB at once",
    "reserve": "a tenth, for scratchpad, collectives and constants",
}

_A_SECOND = 3500
"""Instructions that one compiler gets through. A published build of Llama-3.2-1B for one core of
trn1 took 45 s for the graph of one token, whose instructions are estimated at 160,000.
"""


def describe(
    spec: CompileSpec, config: ModelConfig, need: Footprint, workers: int | None = None
) -> Iterator[str]:
    """The whole plan of the spec, line by line.

    workers: compilers at once (default: as many as a build takes here)
    """
    device = device_of(spec.target)
    shared = f", {spec.tensor_parallel} ranks" if spec.tensor_parallel > 1 else ""
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
    times = [graph_time(config, spec, bucket) for bucket in spec.graphs]
    between = times_between(config, spec)
    yield ""
    yield from _graphs(spec, config, times, between)
    yield ""
    yield from _memory(need, device)
    if spec.target != "cpu":
        counts = [time.instructions for time in (*times, *between.values())]
        yield ""
        yield from compiling(counts, workers or compilers_at_once(spec.target))


def _graphs(
    spec: CompileSpec,
    config: ModelConfig,
    times: Sequence[GraphTime],
    between: Mapping[str, GraphTime],
) -> Iterator[str]:
    ranks = "" if spec.tensor_parallel == 1 else " a rank"
    error = ERRORS.get(spec.target)
    beside = "as published" if spec.target in PUBLISHED else f"within {error:.0%}" if error else ""
    yield (
        f"{f'{len(spec.graphs)} graphs':<36}{f'GFLOP{ranks}':>14}{f'MB moved{ranks}':>18}"
        f"{'ms':>11}{beside and f'{beside:>18}'}  most of it"
    )
    for bucket, time in zip(spec.graphs, times, strict=True):
        call = graph_work(config, spec, bucket)
        work = f"{call.flops / 1e9:>14.3f}{call.moved / 1e6:>18.1f}"
        yield f"{bucket.name:<36}{work}{_milliseconds(time, error)}"
    if between:
        yield f"{len(between)} more, called between the others"
        for name, time in between.items():
            yield f"{name:<36}{'':>32}{_milliseconds(time, error)}"
    yield basis(spec.target)


def basis(target: str) -> str:
    """Words on what stands behind a target's times, and how far they may be off."""
    if target == "cpu":
        return "computed, not measured: 20 GB/s and 50 GFLOPS assumed"
    computed = f"computed, not measured: weights at {RATES[target].stream / 1e9:.0f} GB/s a rank"
    if target in PUBLISHED:
        return (
            f"{computed}; as published: solved from passes of AWS's own server, and what plans go "
            "by (docs/neuron-native.md)"
        )
    if target in ERRORS:
        return (
            f"{computed}; passes that others measured on trn1 are within {ERRORS[target]:.0%} "
            "(docs/neuron-pass.md)"
        )
    return f"{computed}; nobody published a pass to compare"


def _milliseconds(time: GraphTime, error: float | None) -> str:
    """The columns of a graph's time. error: as a part of it, where one is known"""
    ms, beside = time.seconds * 1e3, ""
    if time.published is not None:
        beside = f"{time.published * 1e3:.1f}"
    elif error is not None:
        beside = f"{ms * (1 - error):.1f} to {ms * (1 + error):.1f}"
    return f"{ms:>11.4g}{beside and f'{beside:>18}'}  {time.bound}"


def _memory(need: Footprint, device: Device) -> Iterator[str]:
    yield (
        f"memory of a rank: {gib(need.total)} of {gib(device.memory)} "
        f"({need.total / device.memory:.1%})"
    )
    known = {"largest activation": need.largest, **_ESTIMATED}
    for name, size in need.parts.items():
        if size:
            what = f" ({known[name]})" if name in known else ""
            yield f"  {name:<18}  {gib(size)}{what}"


def compiling(counts: Sequence[int], at_once: int) -> Iterator[str]:
    """The lines of a plan about the time of compiling.

    counts: instructions of each graph; at_once: compilers that run at a time
    """
    each = [count / _A_SECOND / 60 for count in counts]
    together = max(max(each), sum(each) / at_once)
    yield (
        f"compiling: {_minutes(sum(each))} in all, {_minutes(max(each))} for the longest graph; "
        f"here, {at_once} at once, {_minutes(together)}"
    )
    yield (
        f"  at {_A_SECOND:,} instructions a second, from one published build of another model: "
        "within a factor of 3 at best"
    )


def _minutes(minutes: float) -> str:
    return f"about {minutes / 60:.1f} h" if minutes >= 90 else f"about {max(minutes, 1):.0f} min"


def purposes(spec: CompileSpec, graphs: Sequence[Bucket]) -> Iterator[str]:
    """A line for each of the spec's graphs that are given: its name, and what it is for."""
    for bucket in graphs:
        yield f"{bucket.name:<36}{purpose(spec, bucket)}"


def purpose(spec: CompileSpec, bucket: Bucket) -> str:
    """The purpose of one of the spec's graphs, in words."""
    if isinstance(bucket, RoundBucket):
        what = f"rounds in one graph: a {bucket.shape} is drafted, verified and accepted"
    elif not bucket.everywhere:
        reader = "the draft's prompts" if isinstance(bucket, DraftBucket) else "prompts"
        what = f"{reader}, {bucket.nodes} tokens a call"
    elif bucket.nodes <= least_nodes(spec.dtype):
        what = "the target alone"
    else:
        what = f"trees of up to {bucket.nodes} nodes"
    parts = [what]
    if spec.rows > 1:
        parts.append("one session" if bucket.rows == 1 else f"up to {bucket.rows} sessions")
    if bucket.slots < spec.capacity:
        parts.append(f"while {bucket.slots} slots hold a session")
    if bucket.everywhere:
        parts.append("any temperature" if bucket.sampled else "temperature 0")
    if bucket.masked:
        parts.append("with masks")
    return ", ".join(parts)
