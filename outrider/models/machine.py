"""This machine: its memory, its cores and its processor, without torch."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Conditions(NamedTuple):
    """Conditions under which a model's times were measured."""

    device: str  # in words
    threads: int


def memory_size() -> int:
    """Return the bytes of this machine's memory; 0 if unknown."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return 0
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cores() -> int:
    """Count the cores that this process may use. On Linux, hyperthreads of a core count once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    shares = Path("/sys/devices/system/cpu")
    names = [shares / f"cpu{core}/topology/thread_siblings" for core in os.sched_getaffinity(0)]
    return len({path.read_text() if path.exists() else path for path in names})


def count_threads(threads: int) -> str:
    """Return a number of threads in words."""
    return "1 thread" if threads == 1 else f"{threads} threads"


def processor() -> str:
    """Return the processor's name, as reported by Linux."""
    return _processor_field("model name") or "unknown processor"


def has_bfloat16() -> bool:
    """Return whether Linux reports instructions for products in bfloat16."""
    return bool(BFLOAT16 & {*instructions()})


BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Instructions for products in bfloat16."""


def instructions() -> list[str]:
    """List the processor's instructions for matrix products, as reported by Linux."""
    flags = {*_processor_field("flags").split(), *_processor_field("Features").split()}
    return [name for name in _OF_MATRICES if name in flags]


_OF_MATRICES = (
    "avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile",
    "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip


@cache
def _processor_field(name: str) -> str:
    """Read a field of the first processor in /proc/cpuinfo; empty if missing."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def size_words(size: float) -> str:
    """Return a number of bytes with its unit."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
