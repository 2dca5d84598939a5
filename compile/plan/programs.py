"""What the programs of a Neuron target take: memory of the device beside the tensors, and time to
compile. Both follow from the instructions that compile/ops estimates; neither was measured here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compile.plan.device import Device
from compile.plan.memory import gib

_INSTRUCTION = 64
"""Bytes. A published log of neuronx-cc 2.22 reports 317 KB of code for 5,067 instructions."""
_MICROCODE = 96 << 20
"""Bytes that the runtime takes of each physical core (AWS, neuron-runtime/explore/device-memory).
"""
_A_SECOND = 3500
"""Instructions that one compiler gets through. A published build of Llama-3.2-1B for one core of
trn1 took 45 s for the graph of one token, whose instructions are estimated at 160,000.
"""
_AT_ONCE = 4


def programs(device: Device, counts: Sequence[int]) -> Iterator[str]:
    """The lines of a plan about programs.

    counts: instructions of each graph
    """
    code = sum(counts) * _INSTRUCTION
    yield (
        f"  programs, besides   {gib(code + device.physical_cores * _MICROCODE)} (about "
        f"{sum(counts) / 1e6:.1f} million instructions of {_INSTRUCTION} bytes, and the runtime's "
        "microcode)"
    )
    each = [count / _A_SECOND / 60 for count in counts]
    together = max(max(each), sum(each) / _AT_ONCE)
    yield ""
    yield (
        f"compiling: {_minutes(sum(each))} in all, {_minutes(max(each))} for the longest graph; "
        f"with {_AT_ONCE} compilers at once {_minutes(together)}"
    )
    yield (
        f"  at {_A_SECOND:,} instructions a second, from one published build of another model: "
        "within a factor of 3 at best"
    )


def _minutes(minutes: float) -> str:
    return f"about {minutes / 60:.1f} h" if minutes >= 90 else f"about {max(minutes, 1):.0f} min"
