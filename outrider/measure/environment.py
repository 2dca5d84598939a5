"""The environment of a run: the emulated link to its target, and a record of models and machine."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from inference.command import say
from outrider.client.client import Client
from outrider.client.probing import measure_round_trip
from outrider.measure.link import NO_LINK, LinkShape, shaped_link
from outrider.models.machine import instructions, processor
from outrider.options.network import ConnectionOptions

_LIBRARIES = ("outrider", "torch", "numpy", "grpcio", "transformers")


def environment() -> dict[str, Any]:
    """This machine, its load and software."""
    versions = dict[str, str | None]()
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "processor": processor(),
        "instructions": instructions(),
        "cpus": os.cpu_count(),
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "commit": commit(),
        **versions,
    }


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
    models = {"target": f"{there.model} {there.model_fingerprint}", "type": there.dtype}
    models |= {"device": there.device, **drafts}
    return {
        "models": models,
        "target": there.model,
        "draft": next((clients[name].draft for name in drafts), None),
        "shared": alone.shares_device,
        "left_out": left_out,
        "round_trip": measure_round_trip(alone.target.probe, say),
        "times": [[*shape, seconds] for shape, seconds in there.times],
        "server": there.server_version,
        "environment": environment(),
    }


@contextmanager
def over_link(connection: ConnectionOptions, shape: LinkShape) -> Iterator[ConnectionOptions]:
    """Yield this connection over an emulated link of this shape."""
    if shape == NO_LINK:
        yield connection
        return
    with shaped_link(connection.addresses, shape) as link:
        yield connection.replace(target=None, target_host=link.address)
