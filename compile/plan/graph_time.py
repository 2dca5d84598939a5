"""Seconds of a call of a graph, for the plan that is printed and the planner that chooses graphs.

A Neuron target's are those of compile/ops: as computed, and where passes were published that this
does not explain, also as published. A CPU's are those of 20 GB/s and 50 GFLOPS, which is two cores
of a cloud machine in round numbers: they serve to compare graphs, not to forecast.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from compile.ops.pass_time import PUBLISHED, RATES, PassWork, pass_work, work_between
from compile.plan.memory import graph_work, work
from compile.plan.workload import CallShape
from compile.spec import CompileSpec
from inference.artifact import Bucket
from inference.model.config import ModelConfig

_CPU_BYTES, _CPU_FLOPS = 20e9, 50e9  # a second
_TIMES_WIDER = 4  # from one number of nodes that the planner has recorded to the next


class GraphTime(NamedTuple):
    """Seconds of one call."""

    seconds: float  # as computed
    published: float | None  # with the constants of the target's published passes, if it has some
    bound: str  # what takes most of it
    instructions: int = 0  # about how many the graph becomes; none are counted for a CPU

    @property
    def planned(self) -> float:
        """The seconds that graphs are chosen by."""
        return self.seconds if self.published is None else self.published


def graph_time(config: ModelConfig, spec: CompileSpec, bucket: Bucket) -> GraphTime:
    """The time of a call of one of the spec's graphs."""
    if spec.target == "cpu":
        call = graph_work(config, spec, bucket)
        arithmetic, traffic = call.flops / _CPU_FLOPS, call.moved / _CPU_BYTES
        longest = max(arithmetic, traffic)
        return GraphTime(longest, None, "compute" if arithmetic > traffic else "memory")
    return _time(pass_work(config, spec, bucket), spec.target)


def times_between(config: ModelConfig, spec: CompileSpec) -> dict[str, GraphTime]:
    """The times of the small graphs that a Neuron target calls between the others, by name."""
    if spec.target == "cpu":
        return {}
    return {name: _time(work, spec.target) for name, work in work_between(config, spec).items()}


def _time(counted: PassWork, target: str) -> GraphTime:
    rates, published = RATES[target], None
    time = counted.milliseconds(rates)
    if target in PUBLISHED:
        published = counted.milliseconds(rates, PUBLISHED[target]).total / 1e3
    return GraphTime(time.total / 1e3, published, time.largest, counted.instructions)


def call_cost(config: ModelConfig, spec: CompileSpec) -> Callable[[CallShape], float]:
    """Seconds of a call of any shape, for the planner. On a Neuron target trees are sampled where
    the spec has sampled graphs. On a CPU arithmetic and memory traffic add up, so that every padded
    node counts.
    """

    def cpu(shape: CallShape) -> float:
        picks = 1 if shape.prefill else shape.nodes
        call = work(config, spec, shape.rows, shape.nodes, shape.slots, picks)
        return call.flops / _CPU_FLOPS + call.moved / _CPU_BYTES

    def neuron(shape: CallShape) -> float:
        nodes, least, per_slot = lines(shape.prefill, shape.rows)
        fixed, slope = (float(np.interp(shape.nodes, nodes, line)) for line in (least, per_slot))
        return fixed + slope * shape.slots

    @cache
    def lines(prefill: bool, rows: int) -> tuple[list[int], list[float], list[float]]:
        """Numbers of nodes, and for each the seconds at no slot and those of a slot. What lies
        between is on straight lines.
        """
        nodes, few, many = _widths(spec, prefill), min(64, spec.capacity - 1), spec.capacity
        times = [[seconds(prefill, rows, node, slots) for slots in (few, many)] for node in nodes]
        slopes = [(there - here) / (many - few) for here, there in times]
        fixed = [here - few * slope for (here, _), slope in zip(times, slopes, strict=True)]
        return nodes, fixed, slopes

    def seconds(prefill: bool, rows: int, nodes: int, slots: int) -> float:
        sampled = any(graph.sampled for graph in spec.buckets)
        bucket = CallShape(prefill, rows, nodes, slots).bucket(spec.junk, sampled=sampled)
        return graph_time(config, spec, bucket).planned

    return cpu if spec.target == "cpu" else neuron


def _widths(spec: CompileSpec, prefill: bool) -> list[int]:
    """1, 4, 16, ... and the most nodes that the spec's graphs for prompts, or for trees, have."""
    most = max(bucket.nodes for bucket in spec.buckets if (bucket.nodes > bucket.picks) == prefill)
    widths = [1]
    while widths[-1] < most:
        widths.append(min(_TIMES_WIDER * widths[-1], most))
    return widths
