"""Records the environment of a measurement: models, link, machine and software."""

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
    """Describe this machine, its load and its software."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": processor(),
        "instructions": instructions(),
        "cpus": os.cpu_count(),
        "load": load(),
        "commit": commit(),
        "versions": {name: release for name in _PACKAGES if (release := installed_version(name))},
    }


def load() -> list[float] | None:
    """Return the load averages of this machine; None if the system does not report them."""
    return list(os.getloadavg()) if hasattr(os, "getloadavg") else None


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> str:
    """Return this checkout's git commit, with -dirty if modified; "unknown" without a checkout."""
    git = shutil.which("git")
    if git is None:
        return "unknown"
    words = [git, "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip() or "unknown"


def start_record(
    clients: Mapping[str, Client], drafts: Mapping[str, str], left_out: Mapping[str, str]
) -> dict[str, object]:
    """Return the journal's record of models, machine and link at the start of a run.

    clients: by arm name, target-only first
    drafts: fingerprints of the draft models, by arm name
    left_out: why an arm was skipped, by arm name
    """
    alone = next(iter(clients.values()))
    remote = alone.target.description
    target = f"{remote.model} {remote.model_fingerprint}"
    return {
        "models": {"target": target, "type": remote.dtype, "device": remote.device, **drafts},
        "target": remote.model,
        "draft": next((clients[name].draft for name in drafts), None),
        "shared": alone.shares_device,
        "left_out": left_out,
        "round_trip": measure_round_trip(alone.target.probe, say),
        "times": [[*shape, seconds] for shape, seconds in remote.times],
        "server": remote.server_version,
        "environment": environment(),
    }
