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

from grpc_comm.client.connection import Connection
from inference.command import say
from outrider.client.probing import measure_round_trip
from outrider.measure.link import LinkShape, shaped_link
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
    asked = [git, "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603
    return said.stdout.strip() or "unknown"


def start_record(
    target: Connection, drafts: Mapping[str, str], *, shared: bool
) -> dict[str, object]:
    """The models, the machine and the link, for a line of the journal.

    drafts: what tells the draft of each arm from every other; empty for none
    shared: whether draft and target compute on this machine
    """
    there = target.description
    models = {"target": f"{there.model} {there.model_fingerprint}", "type": there.dtype}
    models |= {"device": there.device, **drafts}
    trip = measure_round_trip(target.probe, say)
    return {
        "models": models,
        "shared": shared,
        "round_trip": trip,
        "times": [[*shape, seconds] for shape, seconds in there.times],
        "server": there.server_version,
        "environment": environment(),
    }


@contextmanager
def over_link(connection: ConnectionOptions, shape: LinkShape) -> Iterator[ConnectionOptions]:
    """Yield this connection over an emulated link of this shape."""
    if shape == LinkShape():
        yield connection
        return
    with shaped_link(connection.addresses, shape) as link:
        yield connection.replace(target=None, target_host=link.address)
