"""Picks the compute type of a checkpoint on a CPU, where --dtype leaves it open: products of its
own sizes are measured in each compute type that its use allows, and kept.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.command import say
from inference.files import cache_directory
from inference.times import Shape, Table
from inference.times_file import StoredTimes
from outrider.models.devices import conditions, pick_device, set_threads
from outrider.models.machine import memory_size
from outrider.options.groups import DeviceOptions, Quantization, QuantizationOptions
from outrider.version import outrider_version

if TYPE_CHECKING:
    from inference.model.decoder import Decoder

NODES = (1, 4, 16)
"""Nodes of the forwards that are measured."""

COUNTED = {"target": (1, 16), "draft": (1, 4)}
"""Nodes of the forwards that count, by the use of a model."""

MARGIN = 1.15
"""Factor by which another compute type has to be quicker than the checkpoint's own."""

LEAST_BYTES = 64_000_000
"""Size of a checkpoint below which nothing is measured: such a model is quick in anything."""

MEMORY_SHARE = 0.5
"""Share of the machine's memory that widened weights may take."""

ROUNDS = 3
"""Products of each kind below which a machine is too busy for its times to say anything."""

_MEASURED, _SECONDS = 32_000_000, 1.0  # weights, more than caches hold, and for how long
MOST_SECONDS = 10.0
"""Seconds of measuring at most, where ROUNDS take longer than usual."""


class ComputeType(NamedTuple):
    """Types in which states and matrices are computed."""

    precision: torch.dtype
    matrices: Quantization | None = None

    def __str__(self) -> str:
        precision = str(self.precision).removeprefix("torch.")
        return f"{self.matrices} in {precision}" if self.matrices else precision


Tables = Mapping[ComputeType, Table]
"""Seconds of a forward pass's products; the checkpoint's own compute type comes first."""


def find_compute_type(
    name: str,
    directory: Path,
    vocabulary: int,
    options: DeviceOptions,
    *,
    drafts: bool,
) -> ComputeType | None:
    """The compute type of a checkpoint that is for a CPU; None where it is its own without a
    choice. Prints on stderr what was picked, and why.

    A target keeps its weights exactly. A draft may have them rounded, also to int8 unless
    --draft_quantization says otherwise.
    """
    from inference.model.checkpoint import DTYPES, empty_decoder
    from inference.model.weight_files import stored_type, weight_files

    size = sum(path.stat().st_size for path in weight_files(directory))
    if size < LEAST_BYTES or pick_device(options.device).type != "cpu":
        return None
    model = empty_decoder(directory, 1, vocabulary)
    parameters = sum(one.numel() for one in model.parameters())
    own = DTYPES[stored_type(directory)]
    int8 = drafts and isinstance(options, QuantizationOptions)
    possible = candidates(own, memory_size() / parameters, drafts=drafts, int8=int8)
    if len(possible) == 1:
        return None
    set_threads(options.threads, parameters)
    use = "draft" if drafts else "target"
    times = _kept_or_measured(model, use, possible)
    if not times:
        say(f"{name}: --dtype auto stays at {possible[0]}: this machine is too busy to compare")
        return possible[0]
    picked = pick(times, COUNTED[use])
    say(f"{name}: {told(times, picked, COUNTED[use])}")
    return picked


def candidates(own: torch.dtype, room: float, *, drafts: bool, int8: bool) -> list[ComputeType]:
    """Compute types that a checkpoint may have, its own precision first.

    float16 is only for checkpoints of its own: others' states may go beyond its range.

    room: the machine's memory in bytes a weight
    int8: whether matrices may be rounded to it
    """
    others = [torch.float32, torch.bfloat16] if drafts else [torch.float32]
    fit = [one for one in others if one.itemsize <= MEMORY_SHARE * room]
    packs = int8 and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if own not in (torch.float16, torch.bfloat16, torch.float32):
        return [ComputeType(own)]
    wide = [ComputeType(one) for one in fit if one != own]
    return [ComputeType(own), *wide, *[ComputeType(own, "int8")] * packs]


def pick(times: Tables, counted: Sequence[int]) -> ComputeType:
    """The compute type whose forwards of `counted` nodes are the quickest, in the geometric mean.
    The checkpoint's own stays unless another is quicker by MARGIN.
    """
    cost = {one: math.prod(table[1, nodes] for nodes in counted) for one, table in times.items()}
    own, best = next(iter(times)), min(cost, key=cost.__getitem__)
    return best if cost[own] > MARGIN ** len(counted) * cost[best] else own


def told(times: Tables, picked: ComputeType, counted: Sequence[int]) -> str:
    """Line with the compute type that was picked, and the reason."""
    own, all_nodes = next(iter(times)), ", ".join(map(str, NODES))
    why = "nothing is clearly quicker" if picked == own else f"quicker than its own {own}"
    figures = [
        f"{one} {', '.join(f'{1e3 * table[1, nodes]:.4g}' for nodes in NODES)}"
        for one, table in times.items()
    ]
    return (
        f"--dtype auto takes {picked}: {why} for {' and '.join(map(str, counted))} nodes (ms of "
        f"a forward's products at {all_nodes} nodes: {'; '.join(figures)})"
    )


def _kept_or_measured(model: Decoder, use: str, possible: Sequence[ComputeType]) -> Tables:
    """Times that an earlier start kept, else measured now and kept; none on a busy machine.

    Only the model's sizes count: its weights may be anywhere. The candidates of a target and a
    draft differ, so each has its own.
    """
    layer = next(iter(model.model.layers))
    sizes = [one.weight.shape for one in layer.modules() if isinstance(one, nn.Linear)]
    head = model.head_weight()[: model.vocabulary].numel()
    weights = sum(size.numel() for size in sizes) * model.config.layers + head
    digest = hashlib.sha256(f"{weights} {[tuple(size) for size in sizes]}".encode()).hexdigest()
    device, threads = conditions("cpu")
    stored = {
        one: StoredTimes(
            cache_directory("profiles"),
            f"{use}-arithmetic",
            f"products of a {use} in {one}",
            {
                "device": device,
                "sizes": digest[:32],
                "dtype": str(one),
                "threads": threads,
                "version": outrider_version(),
            },
        )
        for one in possible
    }
    tables = {one: stored[one].load(say) or {} for one in possible}
    if all((1, nodes) in table for table in tables.values() for nodes in NODES):
        return tables
    times = measured(sizes, weights, possible)  # all together: with the same neighbours
    for one, table in times.items():
        stored[one].store(table)
    return times


def measured(
    sizes: Sequence[torch.Size], weights: int, possible: Sequence[ComputeType]
) -> dict[ComputeType, dict[Shape, float]]:
    """Measure a layer's products in each compute type, for about a second, on random weights.
    Layers are repeated, or their outputs cut, until the weights are as many as can be timed.
    Returns nothing where even MOST_SECONDS are too short for ROUNDS.

    sizes: of a layer's matrices, [outputs, inputs]
    weights: of the matrices of a whole forward, whose seconds are returned
    """
    layer = sum(size.numel() for size in sizes)
    cut = [(math.ceil(min(1, _MEASURED / layer) * outs / 16) * 16, ins) for outs, ins in sizes]
    cut *= max(1, min(_MEASURED, weights) // layer)
    scale = weights / sum(map(math.prod, cut))
    products = {one: [_product(one, *size) for size in cut] for one in possible}
    best = {one: {(1, nodes): math.inf for nodes in NODES} for one in possible}
    begun, rounds = time.perf_counter(), 0
    while (took := time.perf_counter() - begun) < _SECONDS or rounds < ROUNDS:
        if took >= MOST_SECONDS:
            return {}
        rounds += 1
        for one, layers in products.items():
            for nodes in NODES:
                states = [_random(nodes, inputs).to(one.precision) for _, inputs in cut]
                start = time.perf_counter()
                for product, state in zip(layers, states, strict=True):
                    product(state)
                seconds = scale * (time.perf_counter() - start)
                best[one][1, nodes] = min(best[one][1, nodes], seconds)
    return best


def _product(kind: ComputeType, outputs: int, inputs: int) -> Callable[[Tensor], Tensor]:
    from inference.model.quantized import Int8Matrix, int8_product

    weight = _random(outputs, inputs)
    if kind.matrices is None:
        return partial(F.linear, weight=weight.to(kind.precision))
    return int8_product(Int8Matrix(weight.mul(30).to(torch.int8), torch.ones(outputs)), None)


def _random(rows: int, columns: int) -> Tensor:  # [rows, columns] float32
    """Random numbers: a few, which take no time to make, repeated."""
    few = torch.rand(1 << 16) - 0.5
    return few.repeat(rows * columns // len(few) + 1)[: rows * columns].view(rows, columns)
