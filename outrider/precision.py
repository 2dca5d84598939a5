"""Picks what a model is computed in on a CPU, where --dtype leaves it open: products of its own
sizes are measured in each arithmetic that is possible, and kept.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.cache_directory import cache_directory
from inference.command import say
from inference.planner.kept_times import Subject, keep_profile, load_profile
from outrider.devices import memory_size, pick_device, set_threads, subject_device
from outrider.models import Checkpoint, FoundModel
from outrider.options.groups import CalibrateOptions, DeviceOptions
from outrider.options.reduction import ReductionOptions
from outrider.options.values import Precision, Quantization
from outrider.version import outrider_version

if TYPE_CHECKING:
    from inference.model.decoder import Decoder

NODES = (1, 4, 16)
"""Nodes of the forwards that are measured."""

TARGET, DRAFT = (1, 16), (1, 4)
"""Nodes of the forwards that count for a target, and for a draft."""

MARGIN = 1.15
"""Factor by which another arithmetic has to be quicker than the checkpoint's own."""

LEAST_BYTES = 64_000_000
"""Size of a checkpoint below which nothing is measured: such a model is quick in anything."""

MEMORY_SHARE = 0.5
"""Share of the machine's memory that weights may take which are widened."""

_MEASURED = 32_000_000  # weights, more than caches hold
_SECONDS = 1.0  # of measuring; a round that has begun goes on
_OUTPUTS = 16  # a cut matrix keeps a multiple of so many


class ComputeType(NamedTuple):
    """What states and matrices are computed in."""

    precision: Precision
    matrices: Quantization | None = None

    def __str__(self) -> str:
        return f"{self.matrices} in {self.precision}" if self.matrices else self.precision


Times = Mapping[int, float]
"""Seconds of a forward by its nodes."""


def settled(found: FoundModel, options: DeviceOptions, *, drafts: bool) -> FoundModel:
    """The model with its arithmetic picked, where it is a checkpoint in safetensors for a CPU and
    the options leave open what it is computed in. Prints on stderr what was picked, and why.

    A target keeps its weights exactly. A draft may have them rounded, also to int8 unless
    --draft_quantization says otherwise.
    """
    if not isinstance(found, Checkpoint) or options.dtype or found.embedded or found.offload:
        return found
    if found.reduction.matrices or options.device.startswith("neuron"):
        return found
    if pick_device(options.device).type != "cpu":
        return found
    from inference.model.checkpoint import empty_decoder, weight_files  # heavy to import

    if sum(path.stat().st_size for path in weight_files(found.directory)) < LEAST_BYTES:
        return found
    vocabulary = found.reduction.vocabulary(found.tokenizer.vocabulary)
    model = empty_decoder(found.directory, 1, vocabulary)
    parameters, own = sum(one.numel() for one in model.parameters()), _own(found)
    if own is None:
        return found
    rounded = drafts and isinstance(options, ReductionOptions)
    asked = candidates(own, memory_size() / parameters, drafts=drafts, int8=rounded)
    if len(asked) == 1:
        return found
    set_threads(options.threads, parameters)
    counted = DRAFT if drafts else TARGET
    afresh = isinstance(options, CalibrateOptions) and options.calibrate
    directory, part = cache_directory("profiles"), "draft" if drafts else "target"
    times = kept_or_measured(directory, model, part, asked, afresh=afresh)
    picked = pick(times, counted)
    say(f"{found.name}: {told(times, picked, counted)}")
    reduction = found.reduction._replace(matrices=picked.matrices)
    return replace(found, precision=picked.precision, reduction=reduction)


def candidates(own: Precision, room: float, *, drafts: bool, int8: bool) -> tuple[ComputeType, ...]:
    """What a checkpoint may be computed in, its own precision first.

    float16 is only for checkpoints of its own: others' states may go beyond its range.

    room: the machine's memory in bytes a weight
    int8: whether matrices may be rounded to it
    """
    others: tuple[Precision, ...] = ("float32", "bfloat16") if drafts else ("float32",)
    wide = [
        ComputeType(one)
        for one in others
        if one != own and _type(one).itemsize <= MEMORY_SHARE * room
    ]
    packs = int8 and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return (ComputeType(own), *wide, *([ComputeType(own, "int8")] if packs else []))


def pick(times: Mapping[ComputeType, Times], counted: Sequence[int]) -> ComputeType:
    """The arithmetic whose forwards of `counted` nodes are the quickest, in the geometric mean. The
    first stays unless another is quicker by MARGIN.
    """

    def cost(one: ComputeType) -> float:
        return math.prod(times[one][nodes] for nodes in counted)

    first, best = next(iter(times)), min(times, key=cost)
    return best if cost(first) > MARGIN ** len(counted) * cost(best) else first


def told(times: Mapping[ComputeType, Times], picked: ComputeType, counted: Sequence[int]) -> str:
    """What was picked, in a line with the reason."""

    def figures(one: ComputeType) -> str:
        return f"{one} {', '.join(f'{1e3 * times[one][nodes]:.4g}' for nodes in NODES)}"

    own = next(iter(times))
    why = "nothing is clearly quicker" if picked == own else f"quicker than its own {own}"
    return (
        f"--dtype auto takes {picked}: {why} for {' and '.join(map(str, counted))} nodes (ms of "
        f"a forward's products at {', '.join(map(str, NODES))} nodes: "
        f"{'; '.join(map(figures, times))})"
    )


def kept_or_measured(
    directory: Path,
    model: Decoder,
    part: str,
    asked: Sequence[ComputeType],
    *,
    afresh: bool = False,
) -> dict[ComputeType, Times]:
    """Seconds of a forward's products in each arithmetic: what an earlier start kept in
    `directory`, else measured now and kept.

    model: on any device; only its sizes count
    part: target or draft, whose candidates differ
    afresh: measure, whatever is kept
    """
    layer = next(iter(model.model.layers))
    sizes = [one.weight.shape for one in layer.modules() if isinstance(one, nn.Linear)]
    head = model.head_weight()[: model.vocabulary].numel()
    weights = sum(size.numel() for size in sizes) * model.config.layers + head
    named = f"{weights} weights, layers of {[tuple(size) for size in sizes]}"
    subject = Subject(
        part=f"{part}-arithmetic",
        device=subject_device(torch.device("cpu")),
        model=hashlib.sha256(named.encode()).hexdigest()[:32],
        dtype="",
        threads=torch.get_num_threads(),
        context=0,
        rows=1,
        nodes=NODES[-1],
        version=outrider_version(),
    )
    subjects = {one: replace(subject, dtype=str(one)) for one in asked}
    kept = {one: load_profile(directory, subjects[one], say) or {} for one in asked}
    if not afresh and all((1, nodes) in found for found in kept.values() for nodes in NODES):
        return {one: {nodes: found[1, nodes] for nodes in NODES} for one, found in kept.items()}
    # all together: so each has the same neighbours on the machine
    times = measured(sizes, weights, asked)
    for one, found in times.items():
        keep_profile(directory, subjects[one], {(1, nodes): found[nodes] for nodes in NODES})
    return times


def measured(
    sizes: Sequence[torch.Size], weights: int, asked: Sequence[ComputeType]
) -> dict[ComputeType, Times]:
    """Measure a layer's products in each arithmetic, for about a second, on random weights. Layers
    are repeated, or their outputs cut, until the weights are as many as can be timed.

    sizes: of a layer's matrices, [outputs, inputs]
    weights: of the matrices of a whole forward, whose seconds are returned
    """
    layer = sum(size.numel() for size in sizes)
    share = min(1.0, _MEASURED / layer)
    cut = [(_OUTPUTS * math.ceil(share * size[0] / _OUTPUTS), size[1]) for size in sizes]
    cut *= max(1, min(_MEASURED, weights) // layer)
    scale = weights / sum(outputs * inputs for outputs, inputs in cut)
    products = {one: [_product(one, size) for size in cut] for one in asked}
    best = {one: dict.fromkeys(NODES, math.inf) for one in asked}
    begun = time.perf_counter()
    while time.perf_counter() < begun + _SECONDS:
        for one, layers in products.items():
            for nodes in NODES:
                states = {size[1]: _random(nodes, size[1]).to(_type(one.precision)) for size in cut}
                start = time.perf_counter()
                for product, size in zip(layers, cut, strict=True):
                    product(states[size[1]])
                spent = scale * (time.perf_counter() - start)
                best[one][nodes] = min(best[one][nodes], spent)
    return dict(best)


def _product(arithmetic: ComputeType, size: tuple[int, int]) -> Callable[[Tensor], Tensor]:
    from inference.model.quantized import Int8Matrix, int8_product

    if arithmetic.matrices is None:
        return partial(F.linear, weight=_random(*size).to(_type(arithmetic.precision)))
    levels = _random(*size).mul_(30).clamp_(-127, 127).to(torch.int8)
    return int8_product(Int8Matrix(levels, torch.ones(size[0])), None)


def _random(rows: int, columns: int) -> Tensor:  # [rows, columns] float32
    """Random numbers, few enough that they are made in no time, repeated."""
    few = torch.randn(1 << 16)
    return few.repeat(rows * columns // len(few) + 1)[: rows * columns].view(rows, columns)


def _type(precision: Precision) -> torch.dtype:
    from inference.model.checkpoint import DTYPES

    return DTYPES[precision]


def _own(found: Checkpoint) -> Precision | None:
    """The precision of the checkpoint's weights; None where it is none of ours."""
    from inference.model.checkpoint import DTYPES, is_used, read_tensors

    _, first = next(read_tensors(found.directory, partial(is_used, found.config)))
    return next((name for name in get_args(Precision) if DTYPES[name] is first.dtype), None)
