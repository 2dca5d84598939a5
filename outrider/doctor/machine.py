"""Memory, disk and clock of a target's host."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from inference.cache_directory import cache_directory
from outrider.doctor.findings import Finding, fault, warning
from outrider.doctor.host import TargetHost

GIB = 1 << 30
_LEAST_DISK, _LITTLE_DISK = 1 * GIB, 10 * GIB
_LITTLE_MEMORY = 2 * GIB


def check_memory(host: TargetHost) -> Iterator[Finding]:
    """Whether the weights fit where a CPU computes, and whether any memory is left."""
    found = dict(re.findall(r"^(\w+): +(\d+) kB$", host.text("/proc/meminfo") or "", re.MULTILINE))
    if not {"MemTotal", "MemAvailable"} <= set(found):
        yield warning(
            "memory", "/proc/meminfo does not say", "compare `free` with the model's size"
        )
        return
    total, free = int(found["MemTotal"]) << 10, int(found["MemAvailable"]) << 10
    said = f"{free / GIB:.1f} of {total / GIB:.1f} GiB are free"
    need = _weights(host)
    if need > total:
        text = f"{said}, the weights alone take {need / GIB:.1f}"
        yield fault("memory", text, "take an instance with more memory, or a smaller model")
    elif free < _LITTLE_MEMORY:
        yield warning("memory", said, "see what takes it: ps -eo rss,args --sort -rss | head")
    else:
        yield Finding("memory", said)


def _weights(host: TargetHost) -> int:
    """Bytes of weights that the host's own memory holds; 0 where a device's does, or unknown."""
    options = host.options
    on_cpu = options.device in ("auto", "cpu")
    if host.manifest is not None:
        on_cpu, place = host.manifest.target == "cpu", options.artifact
    else:
        place = options.model or options.target_model
    if not on_cpu or place is None or not Path(place).is_dir():
        return 0
    suffixes = (".safetensors", ".bin")
    return sum(file.stat().st_size for file in Path(place).rglob("*") if file.suffix in suffixes)


def check_disk(host: TargetHost) -> Iterator[Finding]:
    """Space where the target keeps its times and models."""
    directory = cache_directory("profiles")
    while not directory.exists():
        directory = directory.parent
    free = shutil.disk_usage(directory).free
    said = f"{free / GIB:.1f} GiB are free at {directory}"
    remedy = f"remove what is not needed (du -xh --max-depth 2 {directory} | sort -h), or a "
    remedy += "larger volume"
    if free < _LEAST_DISK:
        yield fault("disk", said, remedy)
    else:
        yield warning("disk", said, remedy) if free < _LITTLE_DISK else Finding("disk", said)


def check_clock(host: TargetHost) -> Iterator[Finding]:
    """Whether the clock is set by others: certificates and AWS's signatures need the true time."""
    said = host.answer("/usr/bin/timedatectl", "show", "--property=NTPSynchronized", "--value")
    if said == "yes":
        yield Finding("clock", "set by the network")
    elif said == "no":
        text = "not set by the network: certificates and AWS's signatures depend on it"
        yield fault("clock", text, "timedatectl set-ntp true, or start chrony")
    else:
        remedy = "compare `date -u` with another machine's"
        yield warning("clock", "nobody here says whether it is right", remedy)
