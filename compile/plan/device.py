"""The hardware of one rank of a target: its memory, and the instances that have it.

Numbers are those that AWS publishes for a chip (docs "about-neuron/arch/neuron-hardware"), divided
by its cores. A rank is one NeuronCore-v2 (trn1, inf2) or one logical core of two cores
(NeuronCore-v3 on trn2, v4 on trn3, LNC=2). Times are in compile/plan/pass_seconds.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True)
class Device:
    """The hardware of one rank."""

    target: str
    memory: int  # bytes
    instances: Mapping[str, int]  # name -> number of ranks
    physical_cores: int = 1  # per rank

    @property
    def ranks(self) -> int:
        """The number of ranks of the largest instance."""
        return max(self.instances.values())

    def instance(self, ranks: int) -> str | None:
        """Return the smallest instance with at least this number of ranks."""
        fitting = [name for name, available in self.instances.items() if available >= ranks]
        return min(fitting, key=lambda name: self.instances[name], default=None)


_NEURON = {
    # 32 GiB per chip of 2 cores
    "trn1": Device("trn1", 16 * GIB, {"trn1.2xlarge": 2, "trn1.32xlarge": 32}),
    "inf2": Device(
        "inf2",
        16 * GIB,
        {"inf2.xlarge": 2, "inf2.8xlarge": 2, "inf2.24xlarge": 12, "inf2.48xlarge": 24},
    ),
    # 96 GiB per chip of 4 logical cores
    "trn2": Device("trn2", 24 * GIB, {"trn2.3xlarge": 4, "trn2.48xlarge": 64}, 2),
    # 144 GiB per chip of 4 logical cores
    "trn3": Device("trn3", 36 * GIB, {"one Trainium3 chip": 4}, 2),
}


def device_of(target: str) -> Device:
    """Return the hardware of one rank of a target; for "cpu", with this machine's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return _NEURON.get(target) or Device("cpu", memory, {"this machine": 1})


def neuron_targets() -> tuple[str, ...]:
    return tuple(_NEURON)
