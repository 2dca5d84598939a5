"""Estimates the time of a graph call on a Neuron device, from published forward passes.

A call takes

    (weights + keys and values) / stream + layers x layer + call + nodes x node

with constants for each target. `stream` is from published measurements; the other constants are
fitted to published passes. tests/compile/plan/test_pass_seconds.py lists these passes and others
that were held out. All estimates are within BAND.
"""

from __future__ import annotations

from typing import NamedTuple

from compile.plan.memory import passes_of
from compile.spec import CompileSpec
from inference.files.artifact import Bucket
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
