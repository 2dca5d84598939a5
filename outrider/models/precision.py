"""Picks a checkpoint's compute type on a CPU for --dtype auto. Only the processor's instructions
and the memory decide, so that equal machines compute alike.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import torch

from inference.command import say
from outrider.models.devices import pick_device
from outrider.models.machine import BFLOAT16, instructions, memory_size
from outrider.options.groups import DeviceOptions, Quantization, QuantizationOptions

MIN_BYTES = 64_000_000
"""Bytes from which on a checkpoint's precision may change; smaller models are fast anyway."""

MEMORY_SHARE = 0.5
"""Share of the machine's memory that weights converted to float32 may take."""

NATIVE = {torch.bfloat16: BFLOAT16, torch.float16: {"avx512_fp16"}}
"""Instructions for products in a precision; any one of a set suffices. float32 needs none."""

INT8 = {"avx512_vnni", "avx_vnni", "amx_int8"}
"""Instructions with which int8 matrices are faster than bfloat16 (docs/measured.md)."""


class ComputeType(NamedTuple):
    """Types in which states and matrices are computed."""

    precision: torch.dtype
    matrices: Quantization | None = None

    def __str__(self) -> str:
        precision = str(self.precision).removeprefix("torch.")
        return f"{self.matrices} in {precision}" if self.matrices else precision


def find_compute_type(
    name: str, directory: Path, options: DeviceOptions, *, drafts: bool
) -> ComputeType | None:
    """Pick a checkpoint's compute type on a CPU, and print it on stderr; None to keep its own.

    A target's weights are never rounded. A draft's matrices may be rounded to int8, unless
    --draft_quantization says otherwise.
    """
    from inference.model.checkpoints.checkpoint import DTYPES
    from inference.model.checkpoints.weight_files import stored_type, weight_files

    size = sum(path.stat().st_size for path in weight_files(directory))
    if size < MIN_BYTES or pick_device(options.device).type != "cpu":
        return None
    stored, has = DTYPES[stored_type(directory)], {*instructions()}
    int8 = drafts and isinstance(options, QuantizationOptions)
    packs = int8 and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    picked = pick(stored, has if packs else has - INT8, memory_size() / size * stored.itemsize)
    if picked is not None:
        say(f"{name}: --dtype auto takes {picked}, which is faster than {ComputeType(stored)} here")
    return picked


def pick(stored: torch.dtype, has: Collection[str], room: float) -> ComputeType | None:
    """Pick the compute type of a checkpoint stored in this precision; None to keep its own.

    has: the processor's instructions; matrices are rounded only if these include one of INT8
    room: the machine's memory in bytes per weight
    """
    if stored not in (*NATIVE, torch.float32):
        return None
    if INT8.intersection(has):
        return ComputeType(stored, "int8")
    slow = stored in NATIVE and not NATIVE[stored].intersection(has)
    fits = torch.float32.itemsize <= MEMORY_SHARE * room
    return ComputeType(torch.float32) if slow and fits else None
