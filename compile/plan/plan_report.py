"""What a dry run prints: the graphs with their work and times, and a rank's memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from compile.build.free_memory import compilers_at_once
from compile.ops.engines import rates_of
from compile.plan.device import Device, device_of
from compile.plan.graph_time import GraphTime, graph_time, times_between
from compile.plan.memory import ITEM, Footprint, Work, gib, graph_work
from compile.plan.programs import compiling
from compile.spec import CompileSpec
from inference.artifact import Bucket, features_of
from inference.model.config import ModelConfig

_ESTIMATED = {
    "programs": "all taken to be as long as the longest of their kind, and microcode",
    "rings": "descriptors of what the graphs move, 2 KiB at once",
    "reserve": "a tenth, for scratchpad, collectives and constants",
}


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
    rates = None if spec.target == "cpu" else rates_of(spec.target)
    slower = f"{f'at {rates.observed / 1e9:.0f} GB/s':>14}" if rates else ""
    yield (
        f"{f'{len(spec.graphs)} graphs':<36}{f'GFLOP{ranks}':>14}{f'MB moved{ranks}':>18}"
        f"{'ms':>11}{slower}  most of it"
    )
    for bucket, time in zip(spec.graphs, times, strict=True):
        yield _graph(bucket, graph_work(config, spec, bucket), time)
    if between:
        yield f"{len(between)} more, called between the others"
        for name, time in between.items():
            yield f"{name:<36}{'':>32}{_milliseconds(time)}"
    if rates:
        yield (
            f"computed, not measured: weights at {rates.stream / 1e9:.0f} GB/s a rank, and "
            "at what the fastest published 70B target reaches over a pass (docs/neuron-pass.md)"
        )
    else:
        yield "computed, not measured: 20 GB/s and 50 GFLOPS assumed"


def _graph(bucket: Bucket, call: Work, time: GraphTime) -> str:
    return (
        f"{bucket.name:<36}{call.flops / 1e9:>14.3f}{call.moved / 1e6:>18.1f}{_milliseconds(time)}"
    )


def _milliseconds(time: GraphTime) -> str:
    slower = "" if time.slower is None else f"{time.slower * 1e3:>14.1f}"
    return f"{time.seconds * 1e3:>11.4g}{slower}  {time.bound}"


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
