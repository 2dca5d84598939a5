"""A plan as text, with the estimated time of each graph call on a Neuron device.

A call takes

    (weights + keys and values) / stream + layers x layer + call + nodes x node

with constants for each target. `stream` is from published measurements; the other constants are
fitted to published passes. tests/compile/plan/test_pass_seconds.py lists these passes and others
that were held out. All estimates are within BAND.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from compile.plan.memory import (
    GIB,
    ITEM,
    Device,
    Footprint,
    compilers_at_once,
    device_of,
    gib,
    passes_of,
)
from compile.spec import CompileSpec, least_nodes
from inference.files.artifact import Bucket, DraftBucket, RoundBucket, features_of
from inference.model.checkpoints.config import ModelConfig

BAND = 0.2
"""The maximum relative error of an estimate."""


class Rates(NamedTuple):
    """Constants of one rank: `stream` in bytes per second, the others in seconds."""

    stream: float  # of weights, keys and values, each read once per pass
    layer: float  # exchange between ranks, and operations too short to overlap
    call: float  # the host: launch, inputs, results
    node: float  # for each row


RATES = {
    "trn1": Rates(256e9, 45e-6, 3.9e-3, 0.1e-3),
    "inf2": Rates(237e9, 45e-6, 3.9e-3, 0.1e-3),
    "trn2": Rates(693e9, 420e-6, 6.4e-3, 0.2e-3),  # published by AWS's vLLM-Neuron for TP4
    "trn3": Rates(1153e9, 420e-6, 6.4e-3, 0.2e-3),
}
_FITTED_RANKS = {"trn2": 4}
"""The only number of ranks for which a target's constants hold. Another published pass (8B on 8
ranks, 5.4 ms) takes a quarter of the estimate, so other numbers of ranks get a range.
"""


class PassSeconds(NamedTuple):
    """The seconds of a call, and the range around them."""

    seconds: float | None  # None if published passes allow no single figure
    low: float
    high: float

    def __str__(self) -> str:
        if self.seconds is not None:
            return f"{self.seconds * 1e3:.1f} ms"
        return f"{self.low * 1e3:.0f} to {self.high * 1e3:.0f} ms"


def pass_seconds(config: ModelConfig, spec: CompileSpec, bucket: Bucket) -> PassSeconds | None:
    """Estimate the time of a call of one of the spec's graphs; None for a CPU."""
    if spec.target == "cpu":
        return None
    rates, ranks = RATES[spec.target], spec.tensor_parallel
    if spec.target == "trn3" or _FITTED_RANKS.get(spec.target, ranks) != ranks:
        bare = rates._replace(layer=RATES["trn1"].layer, call=0.0, node=0.0)
        low, high = (_formula(config, spec, bucket, constants) for constants in (bare, rates))
        return PassSeconds(None, low, high)
    seconds = _formula(config, spec, bucket, rates)
    return PassSeconds(seconds, seconds * (1 - BAND), seconds * (1 + BAND))


def _formula(config: ModelConfig, spec: CompileSpec, bucket: Bucket, rates: Rates) -> float:
    """Compute the formula. A round has all passes of the draft, but a single call by the host."""
    passes = passes_of(config, spec, bucket)
    moved = sum(run.moved(spec) for run in passes)
    layers = sum(run.config.layers for run in passes)
    nodes = sum(run.rows * run.nodes for run in passes)
    return moved / rates.stream + layers * rates.layer + rates.call + nodes * rates.node


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
