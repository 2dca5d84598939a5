"""What one rank of a target runs on: memory, bandwidth and arithmetic, and the time a call cannot
go below.

Figures are AWS's published ones for a chip (docs "about-neuron/arch/neuron-hardware") divided by
its cores; what a graph reaches is less. A rank is one NeuronCore-v2 (trn1, inf2) or one logical
core of two NeuronCore-v3 (trn2, LNC=2).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True)
class Device:
    """The hardware of one rank, with its published figures."""

    target: str
    memory: int  # bytes
    bandwidth: float  # bytes a second
    flops: Mapping[str, float]  # dtype -> operations a second
    instances: Mapping[str, int]  # name -> ranks it has
    source: str  # who says so, in words

    @property
    def ranks(self) -> int:
        """Ranks of the largest instance."""
        return max(self.instances.values())

    def instance(self, ranks: int) -> str | None:
        """The smallest instance with so many ranks."""
        fitting = [name for name, available in self.instances.items() if available >= ranks]
        return min(fitting, key=lambda name: self.instances[name], default=None)

    def seconds(self, flops: float, moved: float, dtype: str) -> float:
        """Roofline time: the slower of arithmetic and memory traffic, each at its published peak.
        Collectives are not counted.
        """
        return max(flops / self.flops[dtype], moved / self.bandwidth)

    def bound(self, flops: float, moved: float, dtype: str) -> str:
        """What bounds the call: arithmetic or memory traffic."""
        return "compute" if flops / self.flops[dtype] > moved / self.bandwidth else "memory"


_NEURON_CORE_V2 = {
    "memory": 16 * GIB,  # 32 GiB and 820 GiB/s a chip of 2 cores
    "bandwidth": 410.0 * GIB,
    "flops": {
        "bfloat16": 95e12,
        "float16": 95e12,
        "float32": 23.75e12,
    },  # 190 and 47.5 TFLOPS a chip
}
_PUBLISHED = "AWS's published peaks of a chip, divided by its cores"

_NEURON = {
    "trn1": Device(
        "trn1",
        **_NEURON_CORE_V2,  # type: ignore[arg-type]
        instances={"trn1.2xlarge": 2, "trn1.32xlarge": 32},
        source=_PUBLISHED,
    ),
    "inf2": Device(
        "inf2",
        **_NEURON_CORE_V2,  # type: ignore[arg-type]
        instances={"inf2.xlarge": 2, "inf2.8xlarge": 2, "inf2.24xlarge": 12, "inf2.48xlarge": 24},
        source=_PUBLISHED,
    ),
    "trn2": Device(
        "trn2",
        memory=24 * GIB,  # 96 GiB, 2.9 TB/s, 667 and 181 TFLOPS a chip of 4 logical cores
        bandwidth=2.9e12 / 4,
        flops={"bfloat16": 667e12 / 4, "float16": 667e12 / 4, "float32": 181e12 / 4},
        instances={"trn2.3xlarge": 4, "trn2.48xlarge": 64},
        source=_PUBLISHED,
    ),
}


def device_of(target: str) -> Device:
    """The device of one rank of a target. For cpu it has this machine's memory and assumed
    speeds.
    """
    return _NEURON.get(target) or _this_machine()


def _this_machine() -> Device:
    """This machine's CPU. 20 GB/s and 50 GFLOPS are assumed, which is two cores of a cloud machine
    in round numbers. They serve to compare graphs, not to forecast.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    flops = dict.fromkeys(("float32", "bfloat16", "float16", "int8"), 50e9)
    return Device(
        "cpu",
        memory,
        20e9,
        flops,
        {"this machine": 1},
        "this machine's memory; 20 GB/s and 50 GFLOPS assumed",
    )


def neuron_targets() -> tuple[str, ...]:
    return tuple(_NEURON)
