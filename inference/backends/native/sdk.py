"""AWS's native PyTorch packages for trn2 and trn3 (TorchNeuron): which versions are installed,
whether they work on this machine, and their configuration by environment variables.

TorchNeuron is torch-neuronx 2.13 and later, from Neuron SDK 2.33 on. It adds a device `neuron` to
torch, and backends `neuron` to torch.compile and torch.distributed. `import torch` loads it.
torch-neuronx up to 2.9 is a different package of the same name (neuron/sdk.py). Not yet run on
hardware.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from inference.backends.neuron.sdk import (
    DEVICE,
    INDEX,
    VISIBLE_CORES,
    core_numbers,
    has_device,
    installed,
    instance_family,
)
from inference.errors import BadArtifact, InvalidRequest, MissingExtra
from inference.files.writing import cache_directory

_NO_FALLBACK = "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION"
_GRAPHS, _LOCKS = "TORCH_NEURONX_NEFF_CACHE_DIR", "TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR"
FLAGS = "NEURON_CC_FLAGS"
"""Environment variable and manifest key of the compiler flags: one line."""
_INSTALL = (
    f"pip install --extra-index-url {INDEX} 'torch==2.14.*' 'torch-neuronx==2.14.*' "
    "'neuronx-cc==2.*' nki, with Python 3.12 to 3.14 (trn2 and trn3 need Neuron SDK 2.33 or later)"
)


class Machine(NamedTuple):
    """Device and backends of a rank. Targets run on TRAINIUM; tests use other values on a CPU."""

    device: str
    compiler: str | Callable[..., Any]  # backend of torch.compile
    collectives: str  # backend of torch.distributed


TRAINIUM = Machine("neuron", "neuron", "neuron")


def native_versions() -> dict[str, str]:
    """Return the versions of the packages. Raises MissingExtra, with the install command, if a
    package is missing or is the PyTorch/XLA package of the same name.
    """
    number = installed("torch-neuronx")
    if number is None:
        raise MissingExtra(f"torch-neuronx is not installed: {_INSTALL}")
    match = re.match(r"(\d+)\.(\d+)\.", number)
    family = (int(match[1]), int(match[2])) if match else (0, 0)
    if family < (2, 13):
        raise MissingExtra(
            f"torch-neuronx {number} is not the native package that trn2 and trn3 need (the "
            f"PyTorch/XLA one, up to 2.9, serves trn1 and inf2): {_INSTALL}"
        )
    torch_version = torch.__version__
    if not torch_version.startswith(f"{family[0]}.{family[1]}."):
        raise MissingExtra(
            f"torch-neuronx {number} goes with torch {family[0]}.{family[1]}, installed is "
            f"{torch_version}: {_INSTALL}"
        )
    compiler = installed("neuronx-cc")
    if compiler is None:
        raise MissingExtra(f"neuronx-cc is not installed, which torch-neuronx needs: {_INSTALL}")
    if [int(field) for field in compiler.split(".")[:2]] < [2, 28]:
        raise MissingExtra(
            f"neuronx-cc {compiler} is older than torch-neuronx {number}, which has 2.28 or later "
            f"(Neuron SDK 2.33): {_INSTALL}"
        )
    return {"torch": torch_version, "torch-neuronx": number, "neuronx-cc": compiler}


def check_native(target: str) -> dict[str, str]:
    """Return the versions of the packages, without using the device. Raise an error that names the
    remedy unless this machine can compile and run graphs for the target.
    """
    if not has_device():
        raise InvalidRequest(
            f"{target}: this machine has no Neuron device ({DEVICE} is missing). TorchNeuron "
            f"compiles where it runs: use a {target} instance with the driver (aws-neuronx-dkms), "
            "or pass the device through to the container"
        )
    family = instance_family()
    if family is not None and family != target:
        raise InvalidRequest(
            f"this is a {family} instance, and the graphs are for {target}: build them with "
            f"--target {family}"
        )
    versions = native_versions()
    if not hasattr(torch, TRAINIUM.device):
        raise MissingExtra(
            f"torch-neuronx {versions['torch-neuronx']} is installed, but torch has no device "
            "neuron: is TORCH_DEVICE_BACKEND_AUTOLOAD=0 set? `python -c 'import torch_neuronx'` "
            "says what is wrong"
        )
    return versions


def check_same_versions(built: Mapping[str, str], versions: Mapping[str, str]) -> None:
    """Raise BadArtifact unless graphs were built with the installed versions: another version would
    compile all graphs again.
    """
    for name, number in versions.items():
        if built.get(name) != number:
            raise BadArtifact(
                f"the artefact was built with {name} {built.get(name)}, here is {number}: install "
                "that version or build the artefact again"
            )


def configure(graphs: Path, flags: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set TorchNeuron's directory of compiled graphs and its compiler flags. TorchNeuron reads both
    once, before its first compilation.

    graphs: directory of the compiled graphs of an artefact
    flags: compiler flags; empty for TorchNeuron's defaults
    """
    environment[_GRAPHS] = str(graphs)
    environment.setdefault(_LOCKS, str(cache_directory("torch_neuron_locks")))
    # if the compiler rejects an operation, raise an error instead of a slow run without a graph
    environment.setdefault(_NO_FALLBACK, "1")
    if flags:
        environment[FLAGS] = flags


def cores_of(ranks: int, environment: Mapping[str, str] = os.environ) -> list[int]:
    """Return a core for each rank, from NEURON_RT_VISIBLE_CORES if it is set, else from 0 on.

    Raises InvalidRequest if the variable names too few cores.
    """
    stated = environment.get(VISIBLE_CORES)
    if not stated:
        return list(range(ranks))
    cores = core_numbers(stated)
    if len(cores) < ranks:
        raise InvalidRequest(
            f"{VISIBLE_CORES}={stated} leaves this target {len(cores)} cores, it needs {ranks}"
        )
    return cores[:ranks]


def rank_environment(rank: int, cores: list[int]) -> dict[str, str]:
    """Return the environment variables that make a process one rank of its group, on one core."""
    ranks = str(len(cores))
    return {
        VISIBLE_CORES: str(cores[rank]),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
    }
