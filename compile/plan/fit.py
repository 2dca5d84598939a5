"""Checks whether a spec fits a rank's memory, and finds changes that make it fit: smaller caches,
lower precision, larger devices. On a Neuron device, the memory for everything but tensors is
estimated, not measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from compile.parallel import shards_evenly
from compile.plan.memory import (
    Device,
    Footprint,
    device_of,
    footprint,
    gib,
    models_of,
    neuron_targets,
    passes_of,
)
from compile.spec import CompileSpec
from inference.errors import InvalidRequest, LimitExceeded
from inference.files.artifact import Bucket
from inference.model.checkpoints.config import ModelConfig

AnyBucket = TypeVar("AnyBucket", bound=Bucket)

_STEP = 64  # suggested sequence lengths are multiples of this
_RESERVE = 0.1
"""Share of a rank's memory reserved for other uses that AWS lists
(neuron-runtime/explore/device-memory): the scratchpad in pages of 512 MiB, constants, and
collectives (up to 518 MiB in the tables of transformers-neuronx, issues 49 and 92).
"""


_CODE = 0.01
"""Program size in bytes per weight of its matrices: two instructions of 64 bytes for a tile of 128
by 128 weights and up to 512 nodes, and a quarter for everything else. A published log of neuronx-cc
2.22 reports 317 KB of code for 5,067 instructions.
"""
_TILE = 512  # maximum nodes of all rows for one pass over the tiles
_MICROCODE = 96 << 20
"""Bytes per physical core that the runtime uses (AWS, neuron-runtime/explore/device-memory)."""
_RUN, _DESCRIPTORS = 2048, 32
"""Bytes per transfer, and the size of its two descriptors (source and destination). The first
number is assumed: tables in transformers-neuronx, issues 49 and 92, have 6.5 and 1.5 GiB of rings.
"""


def rank_memory(config: ModelConfig, spec: CompileSpec) -> Footprint:
    """Return the bytes that a rank's memory must hold: tensors and, on a Neuron device, programs,
    descriptor rings and a reserve.
    """
    need = footprint(config, spec)
    if spec.target == "cpu":
        return need
    passes = [run for bucket in spec.graphs for run in passes_of(config, spec, bucket)]
    moved = sum(run.moved(spec) for run in passes)
    tiles = sum(run.weights(spec) * math.ceil(run.rows * run.nodes / _TILE) for run in passes)
    device = device_of(spec.target)
    return replace(
        need,
        programs=round(tiles * _CODE) + device.physical_cores * _MICROCODE,
        rings=round(moved / _RUN * _DESCRIPTORS),
        reserve=int(_RESERVE * device.memory),
    )


def fits(config: ModelConfig, spec: CompileSpec) -> bool:
    """Return whether the spec fits a rank's memory."""
    return rank_memory(config, spec).total <= device_of(spec.target).memory


def check_fits(config: ModelConfig, spec: CompileSpec) -> Footprint:
    """Return the memory that a rank needs. Raises LimitExceeded, with changes that would make the
    spec fit, if it is too much.
    """
    for model, _ in models_of(config, spec):
        check_sharding(model, spec)
    need, device = rank_memory(config, spec), device_of(spec.target)
    if need.total <= device.memory:
        return need
    sizes = ", ".join(f"{name} {gib(size)}" for name, size in need.parts.items() if size)
    advice = "; ".join(_what_fits(config, spec)) or "nothing in the table of devices would fit"
    raise LimitExceeded(
        f"{spec.model} needs {gib(need.total)} of each {spec.target} core ({sizes}), it has "
        f"{gib(device.memory)}. Would fit: {advice}"
    )


def usual_ranks(models: Sequence[ModelConfig], target: str) -> int:
    """Return the most ranks, within a target's smallest instance, that can share all models."""
    device = device_of(target)
    smallest = min(device.instances.values())
    shared = [set(_rank_counts(model, device)) for model in models]
    return max(ranks for ranks in set.intersection(*shared) if ranks <= smallest)


def check_sharding(config: ModelConfig, spec: CompileSpec) -> None:
    """Check that heads divide evenly among the ranks, and that some instance has enough ranks."""
    ranks, device = spec.tensor_parallel, device_of(spec.target)
    if not shards_evenly(config, ranks):
        possible = ", ".join(str(count) for count in _rank_counts(config, device))
        heads = f"{config.heads} heads and {config.kv_heads} key-value heads"
        raise InvalidRequest(
            f"--tensor_parallel {ranks}: {spec.model} has {heads}, which {spec.target} can share "
            f"among {possible}"
        )
    if device.instance(ranks) is None:
        raise InvalidRequest(
            f"--tensor_parallel {ranks}: the largest {spec.target} instance has {device.ranks} "
            "ranks"
        )


def resized(spec: CompileSpec, rows: int, sequence_length: int) -> CompileSpec:
    """Return the spec with a smaller cache. Each graph reads the same share of the cache as before.
    Graphs that become equal are merged.
    """
    capacity, fused = sequence_length + spec.max_tree_nodes, spec.fused
    if fused is not None:
        fused = replace(
            fused,
            prefill=_on(fused.prefill, rows, capacity),
            rounds=_on(fused.rounds, rows, capacity),
        )
    return replace(
        spec,
        rows=rows,
        sequence_length=sequence_length,
        buckets=_on(spec.buckets, rows, capacity),
        fused=fused,
    )


def _on(buckets: Sequence[AnyBucket], rows: int, capacity: int) -> tuple[AnyBucket, ...]:
    smaller = [
        replace(
            bucket,
            rows=min(rows, bucket.rows),
            slots=max(1, bucket.slots * capacity // bucket.junk),
            junk=capacity,
        )
        for bucket in buckets
    ]
    return tuple({bucket.name: bucket for bucket in smaller}.values())


def _what_fits(config: ModelConfig, spec: CompileSpec) -> Iterator[str]:
    """Yield changes that would each make the spec fit. The sequence length is halved repeatedly."""
    halves = (
        spec.sequence_length >> times for times in range(1, spec.sequence_length.bit_length())
    )
    for length in (half // _STEP * _STEP for half in halves if half >= _STEP):
        if fits(config, resized(spec, spec.rows, length)):
            yield f"--sequence_length {length}"
            break
    for rows in range(spec.rows - 1, 0, -1):
        if fits(config, resized(spec, rows, spec.sequence_length)):
            yield f"--rows {rows}"
            break
    if spec.dtype == "float32" and fits(config, replace(spec, dtype="bfloat16")):
        yield "--dtype bfloat16"
    if spec.target != "cpu":
        yield from _larger_devices(config, spec)


def _larger_devices(config: ModelConfig, spec: CompileSpec) -> Iterator[str]:
    """Yield devices with enough memory: more ranks of this target, or the fewest of another."""
    for target in (spec.target, *(name for name in neuron_targets() if name != spec.target)):
        device = device_of(target)
        for ranks in _rank_counts(config, device):
            is_larger = target != spec.target or ranks > spec.tensor_parallel
            if is_larger and fits(config, replace(spec, target=target, tensor_parallel=ranks)):
                yield f"--target {target} --tensor_parallel {ranks} ({device.instance(ranks)})"
                break


def _rank_counts(config: ModelConfig, device: Device) -> list[int]:
    """Return rank counts that can share the model: powers of two, as NeuronCores are grouped."""
    powers = (1 << exponent for exponent in range(device.ranks.bit_length()))
    return [ranks for ranks in powers if ranks <= device.ranks and shards_evenly(config, ranks)]
