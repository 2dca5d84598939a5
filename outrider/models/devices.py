"""Torch devices: which one a --device names, and the CPU threads that compute."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import torch

from inference.errors import InvalidRequest
from outrider.options.groups import DEVICES, is_device

_SMALL = 32e6  # parameters; below, several threads cost more than they bring
_THREADS = torch.get_num_threads()  # torch's choice


def set_threads(asked: int | None, parameters: int) -> None:
    """Set torch's threads: as asked, else one for a small model and torch's choice for others."""
    torch.set_num_threads(asked or (1 if parameters < _SMALL else _THREADS))


def pick_device(name: str) -> torch.device:
    """The torch device of a --device. `auto` takes CUDA where there is one. cuda:1 and others are
    not yet run on hardware.
    """
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


def memory_size() -> int:
    """Bytes of this machine's memory; 0 where the system does not say."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return 0
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def describe(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    if device.type == "xla":
        return "neuron"
    return f"cpu ({torch.get_num_threads()} threads)"


def subject_device(device: torch.device) -> str:
    """Conditions of measured times in words: the device; of a CPU its name, its instructions and
    the library that uses them, too.
    """
    if device.type != "cpu":
        return describe(device)
    instructions = torch.backends.cpu.get_cpu_capability()
    return f"{describe(device)}, {_processor()}, {instructions}, torch {torch.__version__}"


@cache
def _processor() -> str:
    """The processor's name where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown processor"
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        "unknown processor",
    )
