"""The record of a run's start: models, link, machine and software."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from inference.command import say
from outrider.client.client import Client
from outrider.client.probing import measure_round_trip
from outrider.models.machine import instructions, processor

_PACKAGES = (
    "outrider", "torch", "transformers", "grpcio", "numpy", "torch-neuronx", "torch-xla",
    "neuronx-cc", "neuronx-distributed",
)  # fmt: skip


def environment() -> dict[str, Any]:
    """This machine, its load and software."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": processor(),
        "instructions": instructions(),
        "cpus": os.cpu_count(),
        "load": load(),
        "commit": commit(),
        "versions": {name: found for name in _PACKAGES if (found := installed_version(name))},
    }


def load() -> list[float] | None:
    """The load of this machine; None where the system has no such figure."""
    return list(os.getloadavg()) if hasattr(os, "getloadavg") else None


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> str:
    """The commit of this checkout, marked where files were changed; unknown outside of one."""
    git = shutil.which("git")
    if git is None:
        return "unknown"
    words = [git, "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip() or "unknown"


def start_record(
    clients: Mapping[str, Client], drafts: Mapping[str, str], left_out: Mapping[str, str]
) -> dict[str, object]:
    """The models, the machine and the link, for a line of the journal.

    clients: by the names of their arms, target-only first
    drafts: fingerprints of the draft models, by the names of their arms
    left_out: reasons, by the names of the arms
    """
    alone = next(iter(clients.values()))
    there = alone.target.description
    target = f"{there.model} {there.model_fingerprint}"
    return {
        "models": {"target": target, "type": there.dtype, "device": there.device, **drafts},
        "target": there.model,
        "draft": next((clients[name].draft for name in drafts), None),
        "shared": alone.shares_device,
        "left_out": left_out,
        "round_trip": measure_round_trip(alone.target.probe, say),
        "times": [[*shape, seconds] for shape, seconds in there.times],
        "server": there.server_version,
        "environment": environment(),
    }
