"""Estimates the seconds of one call of a graph on a Neuron device, from published passes.

A graph takes

    (weights + keys and values) / stream + layers x layer + call + nodes x node

with constants of its target. The streams are published measurements; the other constants are fitted
to published passes. tests/compile/plan/test_pass_seconds.py lists these passes, and others that
were held out: the estimates of all are within BAND.
"""

from __future__ import annotations

from typing import NamedTuple

from compile.plan.memory import passes_of
from compile.spec import CompileSpec
from inference.files.artifact import Bucket
from inference.model.checkpoints.config import ModelConfig

BAND = 0.2
"""The largest error of a time, as a part of it."""


class Rates(NamedTuple):
    """Constants of one rank: bytes a second, else seconds."""

    stream: float  # of weights, keys and values, all of which a pass reads once
    layer: float  # ranks exchange their parts, and what is too short to hide
    call: float  # the host: launch, inputs, results
    node: float  # of each row


RATES = {
    "trn1": Rates(256e9, 45e-6, 3.9e-3, 0.1e-3),
    "inf2": Rates(237e9, 45e-6, 3.9e-3, 0.1e-3),
    "trn2": Rates(693e9, 420e-6, 6.4e-3, 0.2e-3),  # as AWS's vLLM-Neuron publishes for TP4
    "trn3": Rates(1153e9, 420e-6, 6.4e-3, 0.2e-3),
}
_FITTED_RANKS = {"trn2": 4}
"""The only number of ranks that a target's constants hold for. Its other published pass (8B on 8
ranks, 5.4 ms) is a quarter of what they say, so that a range is all that can be said of others.
"""


class PassSeconds(NamedTuple):
    """Seconds of a call, and the band in which they lie."""

    seconds: float | None  # None if published passes allow no single figure
    low: float
    high: float

    def __str__(self) -> str:
        if self.seconds is not None:
            return f"{self.seconds * 1e3:.1f} ms"
        return f"{self.low * 1e3:.0f} to {self.high * 1e3:.0f} ms"


def pass_seconds(config: ModelConfig, spec: CompileSpec, bucket: Bucket) -> PassSeconds | None:
    """The time of a call of one of the spec's graphs. None for a CPU, which has no formula."""
    if spec.target == "cpu":
        return None
    rates, ranks = RATES[spec.target], spec.tensor_parallel
    if spec.target == "trn3" or _FITTED_RANKS.get(spec.target, ranks) != ranks:
        bare = rates._replace(layer=RATES["trn1"].layer, call=0.0, node=0.0)
        low, high = (_formula(config, spec, bucket, each) for each in (bare, rates))
        return PassSeconds(None, low, high)
    seconds = _formula(config, spec, bucket, rates)
    return PassSeconds(seconds, seconds * (1 - BAND), seconds * (1 + BAND))


def _formula(config: ModelConfig, spec: CompileSpec, bucket: Bucket, rates: Rates) -> float:
    """In a round every pass of the draft counts, but the host is called once."""
    passes = passes_of(config, spec, bucket)
    moved = sum(each.moved(spec) for each in passes)
    layers = sum(each.config.layers for each in passes)
    nodes = sum(each.rows * each.nodes for each in passes)
    return moved / rates.stream + layers * rates.layer + rates.call + nodes * rates.node
