"""Counts the memory that a spec needs on each rank (weights, KV cache, the largest activation), the
bytes that a call moves, and the memory to build it; and the memory and instances of devices.
compile/plan/fit.py adds what else a device needs, and checks the limit.

Sharding is as in compile/parallel.py. Matrices, embeddings and head are divided into
`tensor_parallel` parts. So are key-value heads, which are repeated if there are fewer heads than
ranks. On Neuron the head is a separate table. Small vectors are counted whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from compile.spec import CompileSpec
from inference.files.artifact import NATIVE, Bucket, DraftBucket, RoundBucket
from inference.model.checkpoints.config import ModelConfig, parse_config

GIB = 1 << 30
ITEM = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes per number."""
_SYSTEM = 2 * GIB
_MEMORY = Path("/proc/meminfo")
_WIDE = 4  # scores, logits and noise are always float32


@dataclass(frozen=True)
class Device:
    """The hardware of one rank: a NeuronCore-v2 (trn1, inf2) or a logical core of two cores
    (NeuronCore-v3 on trn2, v4 on trn3, LNC=2). Numbers are those that AWS publishes for a chip
    (docs "about-neuron/arch/neuron-hardware"), divided by its cores.
    """

    target: str
    memory: int  # bytes
    instances: Mapping[str, int]  # name -> number of ranks
    physical_cores: int = 1  # per rank

    @property
    def ranks(self) -> int:
        """The number of ranks of the largest instance."""
        return max(self.instances.values())

    def instance(self, ranks: int) -> str | None:
        """Return the smallest instance with at least this number of ranks."""
        fitting = [name for name, available in self.instances.items() if available >= ranks]
        return min(fitting, key=lambda name: self.instances[name], default=None)


_NEURON = {
    # 32 GiB per chip of 2 cores
    "trn1": Device("trn1", 16 * GIB, {"trn1.2xlarge": 2, "trn1.32xlarge": 32}),
    "inf2": Device(
        "inf2",
        16 * GIB,
        {"inf2.xlarge": 2, "inf2.8xlarge": 2, "inf2.24xlarge": 12, "inf2.48xlarge": 24},
    ),
    # 96 GiB per chip of 4 logical cores
    "trn2": Device("trn2", 24 * GIB, {"trn2.3xlarge": 4, "trn2.48xlarge": 64}, 2),
    # 144 GiB per chip of 4 logical cores
    "trn3": Device("trn3", 36 * GIB, {"one Trainium3 chip": 4}, 2),
}


def device_of(target: str) -> Device:
    """Return the hardware of one rank of a target; for "cpu", with this machine's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return _NEURON.get(target) or Device("cpu", memory, {"this machine": 1})


def neuron_targets() -> tuple[str, ...]:
    return tuple(_NEURON)


@dataclass(frozen=True)
class Footprint:
    """Bytes that one rank needs. On a CPU, only the tensors are counted."""

    weights: int
    cache: int
    noise: int  # noise windows of sampled graphs; a CPU's graphs compute noise themselves
    activation: int  # the largest single tensor of any graph
    largest: str  # name of that tensor
    programs: int = 0
    rings: int = 0  # descriptors of all transfers
    reserve: int = 0  # for needs that cannot be counted

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, int]:
        """The parts of the total, by name."""
        tensors = {"weights": self.weights, "KV cache": self.cache, "noise made ahead": self.noise}
        beside = {"programs": self.programs, "rings": self.rings, "reserve": self.reserve}
        return tensors | {"largest activation": self.activation} | beside


class ModelCall(NamedTuple):
    """A forward pass of one model, as a part of a graph call."""

    config: ModelConfig
    rows: int
    nodes: int  # for each row
    slots: int  # cache slots that are read for each row

    def weights(self, spec: CompileSpec) -> int:
        """Return the number of weights in a rank's matrices and head."""
        config, ranks = self.config, spec.tensor_parallel
        head = config.hidden_size * spec.vocabulary // ranks
        return config.layers * _layer_matrices(config, ranks) + head

    def moved(self, spec: CompileSpec) -> int:
        """Return the bytes that a rank transfers: weights once, keys and values of every slot."""
        cache = _cache_bytes(self.config, spec, self.rows, self.slots + 2 * self.nodes)
        return self.weights(spec) * ITEM[spec.dtype] + cache


def footprint(config: ModelConfig, spec: CompileSpec) -> Footprint:
    """Count the bytes of tensors on each rank, including the spec's draft."""
    from inference.model.choice.graph_choice import WINDOW  # with torch, which devices do not need

    models = models_of(config, spec)
    activation, largest = max(
        (size, f"{name} of {bucket.name}")
        for model, buckets in models
        for bucket in buckets
        for name, size in _activations(model, spec, bucket)
    )
    cache = sum(_cache_bytes(model, spec, spec.rows, spec.cache_slots) for model, _ in models)
    weights = sum(_weight_bytes(model, spec) for model, _ in models)
    windows = spec.target != "cpu" and any(bucket.sampled for bucket in spec.graphs)
    noise = spec.rows * WINDOW * _ids(spec) * _WIDE if windows else 0
    return Footprint(weights, cache, noise, activation, largest)


def _ids(spec: CompileSpec) -> int:
    return -(-spec.vocabulary // spec.tensor_parallel)


def passes_of(config: ModelConfig, spec: CompileSpec, bucket: Bucket) -> list[ModelCall]:
    """Return the forward passes in a call of one of the spec's graphs. In a round, the draft
    computes the tree level by level, then the target computes all nodes.
    """
    rows, nodes, slots = bucket.rows, bucket.nodes, bucket.slots
    if spec.fused is None or not isinstance(bucket, DraftBucket | RoundBucket):
        return [ModelCall(config, rows, nodes, slots)]
    draft = parse_config(spec.fused.config)
    if isinstance(bucket, DraftBucket):
        return [ModelCall(draft, rows, nodes, slots)]
    entry, *levels = bucket.shape.levels[:-1]
    drafted = [ModelCall(draft, rows, wide, slots) for wide in (entry + 1, *levels)]
    return [ModelCall(config, rows, nodes, slots), *drafted]


def models_of(config: ModelConfig, spec: CompileSpec) -> list[tuple[ModelConfig, Sequence[Bucket]]]:
    """Return each model of the spec, with the graphs whose largest tensors belong to it. A round's
    largest tensors are the target's.
    """
    if spec.fused is None:
        return [(config, spec.buckets)]
    return [
        (config, (*spec.buckets, *spec.fused.rounds)),
        (parse_config(spec.fused.config), spec.fused.prefill),
    ]


def gib(size: float) -> str:
    """Format a number of bytes in GiB."""
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / (1 << 20):.2f} MiB"


def _kv_heads(config: ModelConfig, ranks: int) -> int:
    return max(1, config.kv_heads // ranks)


def _cache_bytes(config: ModelConfig, spec: CompileSpec, rows: int, slots: int) -> int:
    """Return the bytes of keys and values in all layers, with this number of slots per row."""
    slot = _kv_heads(config, spec.tensor_parallel) * config.head_dim * ITEM[spec.dtype]
    return 2 * config.layers * rows * slots * slot


def _layer_matrices(config: ModelConfig, ranks: int) -> int:
    hidden, size = config.hidden_size, config.head_dim
    queries = 2 * hidden * config.heads * size // ranks
    keys = 2 * hidden * _kv_heads(config, ranks) * size
    return queries + keys + 3 * hidden * config.intermediate_size // ranks


def _weight_bytes(config: ModelConfig, spec: CompileSpec) -> int:
    hidden, size, ranks = config.hidden_size, config.head_dim, spec.tensor_parallel
    shared = config.tied and spec.target == "cpu"
    tables = config.vocab_size * hidden // ranks * (1 if shared else 2)
    vectors = 2 * hidden + (2 * size if config.qk_norm else 0)
    vectors += (config.heads + 2 * config.kv_heads) * size if config.qkv_bias else 0
    vectors += hidden if config.output_bias else 0
    vectors += 2 * config.intermediate_size + hidden if config.mlp_bias else 0
    layers = config.layers * (_layer_matrices(config, ranks) + vectors)
    return (tables + hidden + layers) * ITEM[spec.dtype]


def _activations(
    config: ModelConfig, spec: CompileSpec, bucket: Bucket
) -> Iterator[tuple[str, int]]:
    """Yield the name and the bytes on one rank of each tensor that grows with the graph's shape."""
    rows, nodes, slots, ranks = bucket.rows, bucket.nodes, bucket.slots, spec.tensor_parallel
    yield "attention scores", rows * config.heads // ranks * nodes * slots * _WIDE
    yield "keys of a layer", _cache_bytes(config, spec, rows, slots) // (2 * config.layers)
    yield "new keys of all layers", _cache_bytes(config, spec, rows, nodes) // 2
    yield "MLP states", rows * nodes * config.intermediate_size // ranks * ITEM[spec.dtype]
    yield "features", rows * nodes * len(spec.features) * config.hidden_size * ITEM[spec.dtype]
    yield "logits", rows * bucket.picks * _ids(spec) * _WIDE
    if bucket.sampled and spec.target == "cpu":
        yield "noise", rows * bucket.levels * spec.vocabulary * _WIDE


def worker_memory(target: str, weights: int) -> int:
    """Return the maximum bytes of a process that builds graphs.

    weights: bytes of the model's weights. A process for a CPU holds them twice, since it compares
        the compiled graph's results with the model's, and needs 2 GiB for libraries and compiler.
        Neuron's compiler needs up to 16 GiB for any model.
    """
    return 2 * weights + 2 * GIB if target == "cpu" else 16 * GIB


def build_memory(config: ModelConfig, spec: CompileSpec) -> int:
    """Return the bytes that a machine needs to build the spec with one process: for the system,
    that process, and for Neuron the weights of all ranks, which this process shards.
    """
    weights = footprint(config, spec).weights
    sharded = 0 if spec.target == "cpu" else weights * spec.tensor_parallel
    return _SYSTEM + sharded + worker_memory(spec.target, weights)


def compilers_at_once(target: str) -> int:
    """Return the number of graphs to compile at once for a Neuron target: half the processors if
    memory allows; one with native PyTorch.
    """
    if target in NATIVE:
        return 1
    return workers_within(max(1, processors() // 2), worker_memory(target, 0))


def workers_within(limit: int, need: int) -> int:
    """Return how many workers of `need` bytes each fit the free memory, from 1 to `limit`."""
    return max(1, min(limit, free_memory() // need))


def free_memory() -> int:
    """Return the bytes available to programs: MemAvailable if known, otherwise the free pages."""
    try:
        for line in _MEMORY.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))
