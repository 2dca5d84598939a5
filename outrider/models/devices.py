"""Torch devices of --device, and the number of CPU threads."""

from __future__ import annotations

import torch

from inference.errors import InvalidRequest
from outrider.models.machine import Conditions, count_threads, processor
from outrider.options.groups import DEVICES, is_device

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
