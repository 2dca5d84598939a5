"""Torch devices of --device, the number of CPU threads, and the compute type for --dtype auto."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import torch

from inference.command import say
from inference.errors import InvalidRequest
from outrider.models.machine import (
    BFLOAT16,
    Conditions,
    count_threads,
    instructions,
    memory_size,
    processor,
)
from outrider.options.groups import (
    DEVICES,
    DeviceOptions,
    Quantization,
    QuantizationOptions,
    is_device,
)

_SMALL = 32e6  # parameters; a smaller model gains nothing from several threads
_THREADS = torch.get_num_threads()  # torch's default


def set_threads(requested: int | None, parameters: int) -> None:
    """Set torch's threads: as requested, else 1 for a small model, else torch's default."""
    torch.set_num_threads(requested or (1 if parameters < _SMALL else _THREADS))


def pick_device(name: str) -> torch.device:
    """Return the torch device of a --device value. `auto` prefers CUDA (not run on hardware)."""
    if name == "neuron":
        raise InvalidRequest(
            "--device neuron is for roles target and verify_target: draft on cpu or cuda"
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not is_device(name):
        raise InvalidRequest(f"--device {name}: one of {', '.join(DEVICES)} or cuda:N is needed")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest(
            f"--device {name}: torch finds no CUDA device here; use --device cpu, or install torch "
            "with CUDA"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InvalidRequest(
            f"--device {name}: torch finds {torch.cuda.device_count()} CUDA devices here, the "
            "first is cuda:0"
        )
    return device


def describe(device: torch.device | str, threads: int | None = None) -> str:
    """Describe a device in words. threads: those of a CPU (default: torch's)"""
    device = torch.device(device)
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    if device.type == "xla":
        return "neuron"
    return f"cpu ({count_threads(threads or torch.get_num_threads())})"


def conditions(device: torch.device | str) -> Conditions:
    """Return the conditions of times measured on a device. A CPU's include its name, its
    instructions and torch's version.
    """
    words, threads = describe(device), torch.get_num_threads()
    if torch.device(device).type != "cpu":
        return Conditions(words, threads)
    instructions = torch.backends.cpu.get_cpu_capability()
    description = f"{words}, {processor()}, {instructions}, torch {torch.__version__}"
    return Conditions(description, threads)


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
