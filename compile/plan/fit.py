"""Whether a spec fits a rank's memory, and what would: smaller caches, narrower numbers, larger
devices. The memory that a Neuron device needs besides the tensors is estimated, not measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from compile.parallel import shards_evenly
from compile.plan.device import Device, device_of, neuron_targets
from compile.plan.memory import Footprint, footprint, gib, models_of, passes_of
from compile.spec import CompileSpec
from inference.errors import InvalidRequest, LimitExceeded
from inference.files.artifact import Bucket
from inference.model.checkpoints.config import ModelConfig

AnyBucket = TypeVar("AnyBucket", bound=Bucket)

_STEP = 64  # sequence lengths that are advised are multiples of this
_RESERVE = 0.1
"""Share of a rank's memory for what AWS lists besides (neuron-runtime/explore/device-memory): the
scratchpad in pages of 512 MiB, constants, and collectives (up to 518 MiB in the tables of
transformers-neuronx, issues 49 and 92).
"""


_CODE = 0.01
"""Bytes of a program for each weight that it multiplies with: two instructions of 64 bytes for a
tile of 128 by 128 weights and up to 512 nodes, and a quarter for everything else. A published log
of neuronx-cc 2.22 reports 317 KB of code for 5,067 instructions.
"""
_TILE = 512  # nodes of all rows together that one pass over the tiles computes
_MICROCODE = 96 << 20
"""Bytes that the runtime takes of each physical core (AWS, neuron-runtime/explore/device-memory).
"""
_RUN, _DESCRIPTORS = 2048, 32
"""Bytes that are moved at once, and those of the two descriptors that say from where to where. The
first is assumed: tables in transformers-neuronx, issues 49 and 92, have 6.5 and 1.5 GiB of rings.
"""


def rank_memory(config: ModelConfig, spec: CompileSpec) -> Footprint:
    """The bytes that a rank's memory has to hold: the tensors and, on a Neuron device, programs,
    rings of descriptors and a reserve.
    """
    need = footprint(config, spec)
    if spec.target == "cpu":
        return need
    passes = [each for bucket in spec.graphs for each in passes_of(config, spec, bucket)]
    moved = sum(each.moved(spec) for each in passes)
    tiles = sum(each.weights(spec) * math.ceil(each.rows * each.nodes / _TILE) for each in passes)
    device = device_of(spec.target)
    return replace(
        need,
        programs=round(tiles * _CODE) + device.physical_cores * _MICROCODE,
        rings=round(moved / _RUN * _DESCRIPTORS),
        reserve=int(_RESERVE * device.memory),
    )


def fits(config: ModelConfig, spec: CompileSpec) -> bool:
    """Whether a rank's memory holds the spec."""
    return rank_memory(config, spec).total <= device_of(spec.target).memory


def check_fits(config: ModelConfig, spec: CompileSpec) -> Footprint:
    """The rank's memory. Raises LimitExceeded, saying what would fit, when it cannot hold the
    spec.
    """
    for model, _ in models_of(config, spec):
        check_sharding(model, spec)
    need, device = rank_memory(config, spec), device_of(spec.target)
    if need.total <= device.memory:
        return need
    parts = ", ".join(f"{name} {gib(size)}" for name, size in need.parts.items() if size)
    advice = "; ".join(_what_fits(config, spec)) or "nothing in the table of devices would fit"
    raise LimitExceeded(
        f"{spec.model} needs {gib(need.total)} of each {spec.target} core ({parts}), it has "
        f"{gib(device.memory)}. Would fit: {advice}"
    )


def usual_ranks(models: Sequence[ModelConfig], target: str) -> int:
    """The most ranks of a target's smallest instance that can share the models."""
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
    """The spec with its graphs on a smaller cache, of which they read the same share. Graphs that
    become equal are merged.
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
    """Changes that would make the spec fit, one at a time: the length is halved."""
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
    """Larger devices that would do: more ranks of this target, or the fewest of another."""
    for target in (spec.target, *(name for name in neuron_targets() if name != spec.target)):
        device = device_of(target)
        for ranks in _rank_counts(config, device):
            more = target != spec.target or ranks > spec.tensor_parallel
            if more and fits(config, replace(spec, target=target, tensor_parallel=ranks)):
                yield f"--target {target} --tensor_parallel {ranks} ({device.instance(ranks)})"
                break


def _rank_counts(config: ModelConfig, device: Device) -> list[int]:
    """Numbers of ranks that can share the model: powers of two, as NeuronCores are grouped."""
    powers = (1 << exponent for exponent in range(device.ranks.bit_length()))
    return [ranks for ranks in powers if ranks <= device.ranks and shards_evenly(config, ranks)]
