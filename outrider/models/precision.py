"""Picks the compute type of a checkpoint on a CPU for --dtype auto: matrix products of its sizes
are measured in each compute type that its use allows, and the times are stored.
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
"""Nodes of the measured forward passes."""

COUNTED = {"target": (1, 16), "draft": (1, 4)}
"""Nodes of the forward passes that decide, by the use of a model."""

MARGIN = 1.15
"""Minimum speed-up of another compute type over the checkpoint's own."""

MIN_BYTES = 64_000_000
"""Size of a checkpoint below which nothing is measured: such a model is fast in any type."""

MEMORY_SHARE = 0.5
"""Share of the machine's memory that widened weights may take."""

ROUNDS = 3
"""Minimum products of each kind; with fewer a machine is too busy for meaningful times."""

_MEASURED, _SECONDS = 32_000_000, 1.0  # weights, more than caches hold; seconds of measuring
MAX_SECONDS = 10.0
"""Maximum seconds of measuring, if ROUNDS take longer than usual."""


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
    """The compute type of a checkpoint for a CPU; None if only its own is possible. Prints the
    choice and its reason on stderr.

    A target keeps its weights exactly. A draft may have them rounded, also to int8 unless
    --draft_quantization says otherwise.
    """
    from inference.model.checkpoint import DTYPES, empty_decoder
    from inference.model.weight_files import stored_type, weight_files

    size = sum(path.stat().st_size for path in weight_files(directory))
    if size < MIN_BYTES or pick_device(options.device).type != "cpu":
        return None
    model = empty_decoder(directory, 1, vocabulary)
    parameters = sum(parameter.numel() for parameter in model.parameters())
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
    say(f"{name}: {choice_line(times, picked, COUNTED[use])}")
    return picked


def candidates(own: torch.dtype, room: float, *, drafts: bool, int8: bool) -> list[ComputeType]:
    """Compute types that a checkpoint may have, its own precision first.

    float16 is only for float16 checkpoints: states of others may exceed its range.

    room: the machine's memory in bytes per weight
    int8: whether matrices may be rounded to it
    """
    others = [torch.float32, torch.bfloat16] if drafts else [torch.float32]
    fit = [dtype for dtype in others if dtype.itemsize <= MEMORY_SHARE * room]
    packs = int8 and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if own not in (torch.float16, torch.bfloat16, torch.float32):
        return [ComputeType(own)]
    wide = [ComputeType(dtype) for dtype in fit if dtype != own]
    return [ComputeType(own), *wide, *[ComputeType(own, "int8")] * packs]


def pick(times: Tables, counted: Sequence[int]) -> ComputeType:
    """The compute type with the fastest forward passes of `counted` nodes, in the geometric mean.
    The checkpoint's own is kept unless another is faster by MARGIN.
    """
    cost = {kind: math.prod(table[1, nodes] for nodes in counted) for kind, table in times.items()}
    own, best = next(iter(times)), min(cost, key=cost.__getitem__)
    return best if cost[own] > MARGIN ** len(counted) * cost[best] else own


def choice_line(times: Tables, picked: ComputeType, counted: Sequence[int]) -> str:
    """Line with the chosen compute type, and the reason."""
    own, all_nodes = next(iter(times)), ", ".join(map(str, NODES))
    why = "nothing is clearly faster" if picked == own else f"faster than its own {own}"
    figures = [
        f"{kind} {', '.join(f'{1e3 * table[1, nodes]:.4g}' for nodes in NODES)}"
        for kind, table in times.items()
    ]
    return (
        f"--dtype auto takes {picked}: {why} for {' and '.join(map(str, counted))} nodes (ms of a "
        f"forward pass's products at {all_nodes} nodes: {'; '.join(figures)})"
    )


def _kept_or_measured(model: Decoder, use: str, possible: Sequence[ComputeType]) -> Tables:
    """Stored times, or times measured and stored now; none on a busy machine.

    Only the model's sizes matter, not its path. A target and a draft have different candidates, so
    each has its own times.
    """
    layer = next(iter(model.model.layers))
    sizes = [part.weight.shape for part in layer.modules() if isinstance(part, nn.Linear)]
    head = model.head_weight()[: model.vocabulary].numel()
    weights = sum(size.numel() for size in sizes) * model.config.layers + head
    digest = hashlib.sha256(f"{weights} {[tuple(size) for size in sizes]}".encode()).hexdigest()
    device, threads = conditions("cpu")
    stored = {
        kind: StoredTimes(
            cache_directory("profiles"),
            f"{use}-arithmetic",
            f"products of a {use} in {kind}",
            {
                "device": device,
                "sizes": digest[:32],
                "dtype": str(kind),
                "threads": threads,
                "version": outrider_version(),
            },
        )
        for kind in possible
    }
    tables = {kind: stored[kind].load(say) or {} for kind in possible}
    if all((1, nodes) in table for table in tables.values() for nodes in NODES):
        return tables
    times = measured(sizes, weights, possible)  # all in one process: under equal load
    for kind, table in times.items():
        stored[kind].store(table)
    return times


def measured(
    sizes: Sequence[torch.Size], weights: int, possible: Sequence[ComputeType]
) -> dict[ComputeType, dict[Shape, float]]:
    """Measure a layer's products in each compute type, for about a second, on random weights.
    Layers are repeated, or their outputs cut, to a number of weights that can be timed. Returns
    nothing if even MAX_SECONDS are too short for ROUNDS.

    sizes: of a layer's matrices, [outputs, inputs]
    weights: number in a whole forward pass, whose seconds are returned
    """
    layer = sum(size.numel() for size in sizes)
    cut = [(math.ceil(min(1, _MEASURED / layer) * outs / 16) * 16, ins) for outs, ins in sizes]
    cut *= max(1, min(_MEASURED, weights) // layer)
    scale = weights / sum(map(math.prod, cut))
    products = {kind: [_product(kind, *size) for size in cut] for kind in possible}
    best = {kind: {(1, nodes): math.inf for nodes in NODES} for kind in possible}
    begun, rounds = time.perf_counter(), 0
    while (took := time.perf_counter() - begun) < _SECONDS or rounds < ROUNDS:
        if took >= MAX_SECONDS:
            return {}
        rounds += 1
        for kind, layers in products.items():
            for nodes in NODES:
                states = [_random(nodes, inputs).to(kind.precision) for _, inputs in cut]
                start = time.perf_counter()
                for product, state in zip(layers, states, strict=True):
                    product(state)
                seconds = scale * (time.perf_counter() - start)
                best[kind][1, nodes] = min(best[kind][1, nodes], seconds)
    return best


def _product(kind: ComputeType, outputs: int, inputs: int) -> Callable[[Tensor], Tensor]:
    from inference.model.quantized import Int8Matrix, int8_product

    weight = _random(outputs, inputs)
    if kind.matrices is None:
        return partial(F.linear, weight=weight.to(kind.precision))
    return int8_product(Int8Matrix(weight.mul(30).to(torch.int8), torch.ones(outputs)), None)


def _random(rows: int, columns: int) -> Tensor:  # [rows, columns] float32
    """Random numbers: a few, repeated, because many take long to generate."""
    few = torch.rand(1 << 16) - 0.5
    return few.repeat(rows * columns // len(few) + 1)[: rows * columns].view(rows, columns)
