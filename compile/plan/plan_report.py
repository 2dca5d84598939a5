"""What a dry run prints: the graphs with their work and roofline times, and a rank's memory."""

from __future__ import annotations

from collections.abc import Iterator

from compile.plan.device import Device, device_of
from compile.plan.memory import Footprint, gib, graph_work
from compile.spec import CompileSpec
from inference.artifact import Bucket
from inference.model.config import ModelConfig


def describe(spec: CompileSpec, config: ModelConfig, need: Footprint) -> Iterator[str]:
    """The whole plan of the spec, line by line."""
    device = device_of(spec.target)
    shared = f", {spec.tensor_parallel} ranks" if spec.tensor_parallel > 1 else ""
    yield (
        f"{spec.model} for {spec.target} ({device.instance(spec.tensor_parallel)}{shared}), "
        f"{spec.dtype}"
    )
    if spec.fused is not None:
        yield f"beside it {spec.fused.model}: every round drafts a {spec.fused.shape}"
    slots = (
        f"{spec.cache_slots} slots (for {spec.sequence_length} tokens, a tree of "
        f"{spec.max_tree_nodes} nodes, and padding)"
    )
    yield f"cache: {spec.rows} rows of {slots}" if spec.rows > 1 else f"cache: one row of {slots}"
    yield ""
    yield from _graphs(spec, config, device)
    yield ""
    yield from _memory(need, device)


def _graphs(spec: CompileSpec, config: ModelConfig, device: Device) -> Iterator[str]:
    ranks = "" if spec.tensor_parallel == 1 else " a rank"
    yield (
        f"{f'{len(spec.graphs)} graphs':<36}{f'GFLOP{ranks}':>14}{f'MB moved{ranks}':>18}"
        f"{'roofline ms':>13}  bound by"
    )
    for bucket in spec.graphs:
        yield _graph(spec, config, device, bucket)
    yield f"roofline from {device.source}"


def _graph(spec: CompileSpec, config: ModelConfig, device: Device, bucket: Bucket) -> str:
    call = graph_work(config, spec, bucket)
    seconds, bound = (
        device.seconds(call.flops, call.moved, spec.dtype),
        device.bound(call.flops, call.moved, spec.dtype),
    )
    return (
        f"{bucket.name:<36}{call.flops / 1e9:>14.3f}{call.moved / 1e6:>18.1f}"
        f"{seconds * 1e3:>13.3f}  {bound}"
    )


def _memory(need: Footprint, device: Device) -> Iterator[str]:
    yield (
        f"memory of a rank: {gib(need.total)} at least, of {gib(device.memory)} "
        f"({need.total / device.memory:.1%})"
    )
    yield f"  weights             {gib(need.weights)}"
    yield f"  KV cache            {gib(need.cache)}"
    yield f"  largest activation  {gib(need.activation)} ({need.largest})"
