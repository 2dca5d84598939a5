"""Seconds of a call of a graph, for the plan that is printed and the planner that chooses graphs.

A Neuron target's are those of compile/ops: as computed, and where passes were published that this
does not explain, also as published. A CPU's are those of 20 GB/s and 50 GFLOPS, which is two cores
of a cloud machine in round numbers: they serve to compare graphs, not to forecast.
"""

from __future__ import annotations

from typing import NamedTuple

from compile.ops.pass_time import PUBLISHED, RATES, PassWork, pass_work, work_between
from compile.plan.memory import graph_work
from compile.spec import CompileSpec
from inference.artifact import Bucket
from inference.model.config import ModelConfig

_CPU_BYTES, _CPU_FLOPS = 20e9, 50e9  # a second


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
