"""The time of one call of a compiled graph, by what it goes to.

`pass_work` counts what the operations of a graph take of each part of a core, and
`PassWork.milliseconds` makes times of it. Weights, keys and values are streamed from memory.
TensorE works behind that stream, and so does VectorE where it widens weights. Everything else is
taken to wait for what comes before it: neuronx-cc keeps the program's order where it cannot show
that another one is faster.

Rates are documented (aws-neuron-sdk): nki/deep-dives/nki-dma-bandwidth-guide.rst for DMA, and
nki/guides/architecture for the engines' clocks. FITTED and PUBLISHED are frozen:
benchmarks/known_passes.py has the passes they are from, and a test holds the digest of all
constants.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from compile.ops.op_work import KINDS, OpWork, op_work
from compile.ops.recording import Op, Recording, record, record_call
from compile.parallel import calls_between
from compile.spec import CompileSpec
from inference.artifact import Bucket
from inference.model.checkpoint import DTYPES
from inference.model.config import ModelConfig, parse_config
from inference.model.round_graph import idle_inputs


@dataclass(frozen=True)
class EngineRates:
    """Rates of one rank's parts, in bytes or cycles a second."""

    dma: float  # bytes between memory and the core, as documented
    stream: float  # bytes of a stream of weights, as others measured
    vector: float  # cycles of VectorE, with 128 lanes
    scalar: float  # cycles of ScalarE, with 128 lanes
    tensor: float  # cycles of TensorE, with an array of 128 by 128


@dataclass(frozen=True)
class Fitted:
    """Constants that no document states, in seconds."""

    all_reduce: float  # seconds that the ranks wait for each other in one collective
    host: float  # seconds of a call outside the graph: launch, inputs, results
    node: float = 0.0  # seconds of a node of a row, beside those of its operations


_CORE_V2 = EngineRates(dma=272e9, stream=256e9, vector=1.12e9, scalar=1.4e9, tensor=2.8e9)
# a logical core is two cores of the third generation, of whose VectorE each has 256 lanes for
# float32; nobody published what is reached, so it has trn1's shares of the documented rate
_CORES_V3 = EngineRates(
    dma=736e9, stream=693e9, vector=4 * 0.96e9, scalar=2 * 1.2e9, tensor=2 * 2.4e9
)
RATES: Mapping[str, EngineRates] = {
    "trn1": _CORE_V2,
    "inf2": replace(_CORE_V2, stream=237e9),
    "trn2": _CORES_V3,
    # documented are 4.9 TB/s of DMA for a chip of four logical cores and trn2's products a second;
    # the rest is trn2's: nobody published a pass of it, so times made of these are estimates
    "trn3": replace(_CORES_V3, dma=1225e9, stream=1153e9),
}
"""Rates of one rank of each Neuron target."""
FITTED = Fitted(all_reduce=20e-6, host=4e-3)
PUBLISHED: Mapping[str, Fitted] = {"trn2": Fitted(all_reduce=200e-6, host=6.6e-3, node=190e-6)}
"""Constants of targets whose published passes FITTED does not explain. Those of trn2 are solved
from three passes of AWS's vLLM-Neuron on four ranks. It does not overlap the host with the device,
so they are of that server as much as of the device.
"""
ERRORS: Mapping[str, float] = {"trn1": 0.15, "inf2": 0.15}
"""Largest error of a computed pass, as a part of what others measured. Passes of trn1 alone were
compared, the cores of which inf2 has.
"""


# fmt: off
COSTS = (
    "weights", "KV", "widening", "matmuls", "attention", "norms", "noise", "top-k", "logits",
    "collectives", "host",
)
# fmt: on
"""The costs that make a pass's time. `widening` is what making 8-bit weights wider takes longer
than the stream of weights, keys and values, and `matmuls` what TensorE takes longer than both.
`norms` has the MLP's activations, too, and `host` what nodes take beside their operations.
"""
_NOTHING = OpWork()


@dataclass(frozen=True)
class PassTime:
    """Milliseconds of a pass by cost, in the order of COSTS."""

    costs: Mapping[str, float]
    products: float  # of TensorE, most of which hides behind the stream

    @property
    def total(self) -> float:
        return sum(self.costs.values())

    @property
    def largest(self) -> str:
        """The cost that takes longest."""
        return max(self.costs, key=lambda cost: self.costs[cost])


@dataclass(frozen=True)
class PassWork:
    """The work of a pass for each part of a core, by cost. It is linear in a graph's operations, so
    works can be added and scaled.

    nodes: of all rows together
    """

    by_cost: Mapping[str, OpWork]
    nodes: float = 0.0

    @classmethod
    def of(cls, recording: Recording) -> PassWork:
        """The work of a recorded call."""
        found: defaultdict[str, OpWork] = defaultdict(OpWork)
        for op in recording.ops:
            work = op_work(op)
            if work != _NOTHING:
                found[cost_of(op)] += work
        return cls(dict(found))

    @property
    def instructions(self) -> int:
        """About how many instructions the graph becomes."""
        return round(sum(work.instructions for work in self.by_cost.values()))

    def milliseconds(self, rates: EngineRates, fitted: Fitted = FITTED) -> PassTime:
        """The time at a target's rates, and with constants that no document states."""
        dma, whole = rates.stream, sum(self.by_cost.values(), _NOTHING)
        stream = {"weights": whole.weights / dma, "KV": whole.cache / dma}
        hidden = stream["weights"] + stream["KV"]
        widened, products = whole.widened / rates.vector, whole.tensor / rates.tensor
        seconds = dict.fromkeys(COSTS, 0.0) | stream
        seconds["widening"] = max(0.0, widened - hidden)
        seconds["matmuls"] = max(0.0, products - max(hidden, widened))
        for cost, work in self.by_cost.items():
            engines = max(work.vector / rates.vector, work.scalar / rates.scalar)
            seconds[cost] += engines + work.copied / dma
        seconds["collectives"] += whole.collectives * fitted.all_reduce + whole.exchanged / dma
        seconds["host"] = fitted.host + self.nodes * fitted.node
        return PassTime({cost: 1e3 * taken for cost, taken in seconds.items()}, 1e3 * products)

    def plus(self, other: PassWork, times: float = 1.0) -> PassWork:
        """The sum of this and `times` the other."""
        costs = {*self.by_cost, *other.by_cost}
        return PassWork(
            {
                cost: self.by_cost.get(cost, _NOTHING)
                + other.by_cost.get(cost, _NOTHING).times(times)
                for cost in costs
            },
            self.nodes + times * other.nodes,
        )


def pass_time(config: ModelConfig, spec: CompileSpec, bucket: Bucket) -> PassTime:
    """The time of a call of one of the spec's graphs at its target's rates."""
    return pass_work(config, spec, bucket).milliseconds(RATES[spec.target])


def pass_work(config: ModelConfig, spec: CompileSpec, bucket: Bucket) -> PassWork:
    """The work of a call of one of the spec's graphs on one rank."""
    work = _whole(config, replace(spec, features=()), idle_inputs(bucket))
    work = replace(work, nodes=bucket.rows * bucket.nodes)
    return work.plus(_features(config, spec, bucket)) if spec.features else work


def work_between(config: ModelConfig, spec: CompileSpec) -> dict[str, PassWork]:
    """The work of the small graphs that are called between the spec's own, by name."""
    return {name: _whole(config, spec, inputs) for name, inputs in calls_between(spec).items()}


class _Joined(nn.Module):
    """Puts the states of several layers side by side, as a Decoder does with features."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self._layers = layers

    def forward(self, state: Tensor) -> Tensor:
        return torch.cat([state] * self._layers, -1)


def _features(config: ModelConfig, spec: CompileSpec, bucket: Bucket) -> PassWork:
    """The work of a call's features, which the model's depth does not change."""
    shape, dtype = (bucket.rows, bucket.nodes, config.hidden_size), DTYPES[spec.dtype]
    state = torch.empty(shape, dtype=dtype, device="meta")
    return PassWork.of(record(_Joined(len(spec.features)), {"state": state}))


def _whole(config: ModelConfig, spec: CompileSpec, inputs: Mapping[str, Tensor]) -> PassWork:
    """The work of a call at the models' depth. Calls of one layer and of two are recorded; every
    further layer adds what the second one did.
    """
    models = [config] if spec.fused is None else [config, parse_config(spec.fused.config)]

    def work_at(target: ModelConfig, draft: ModelConfig | None = None) -> PassWork:
        return PassWork.of(record_call(target, spec, inputs, draft))

    least = work_at(*(replace(model, layers=1) for model in models))
    total = least
    for place, model in enumerate(models):
        deeper = (replace(other, layers=1 + (place == i)) for i, other in enumerate(models))
        layer = work_at(*deeper).plus(least, -1)
        total = total.plus(layer, model.layers - 1)
    return total


def cost_of(op: Op) -> str:
    """The one of COSTS that an operation is of, by its kind and the functions that asked for it."""
    kind = KINDS[op.name]
    if kind == "collective":
        return "collectives"
    if kind == "top_k":
        return "top-k"
    if any("noise" in name or "threefry" in name for name in op.trail):
        return "noise"
    if any(":Attention." in name for name in op.trail):
        return "attention"
    choosing = ("model/sampler.py:", "model/masked_choice.py:")
    if any(name.endswith(":logits") or any(f in name for f in choosing) for name in op.trail):
        return "logits"
    return "norms"
