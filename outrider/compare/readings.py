"""Readings besides the Completion while a text is made: joules of this machine, and peak memory of
this process and the target's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from inference.cost.energy import EnergyMeter, EnergyReader
from inference.cost.quantity import Figure
from outrider.completion import Completion, Request


@dataclass(frozen=True)
class Reading:
    """One text and what it took to make it."""

    done: Completion
    joules: Figure  # read on this machine
    memory_here: int | None  # bytes resident at the peak; None where it cannot be read
    memory_target: int | None


@dataclass(frozen=True)
class Meters:
    """The instruments: this machine's energy readers, and the process of a target that was started
    here.
    """

    readers: Sequence[EnergyReader]
    target_pid: int | None

    def read(self, complete: Callable[[Request], Completion], request: Request) -> Reading:
        """Make the text and read the meters."""
        reset_peak("self")
        if self.target_pid is not None:
            reset_peak(self.target_pid)
        with EnergyMeter(self.readers) as meter:
            done = complete(request)
        target = None if self.target_pid is None else peak_memory(self.target_pid)
        return Reading(done, meter.energy.known, peak_memory("self"), target)


def reset_peak(pid: int | str) -> None:
    """Reset a process's peak memory to its present memory. Where that is not possible, peaks are of
    its whole life.
    """
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # 5 resets the peak: proc(5)
    except OSError:
        return


def peak_memory(pid: int | str) -> int | None:
    """Peak resident bytes; None where there is no /proc."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    kibibytes = next((line.split()[1] for line in lines if line.startswith("VmHWM:")), None)
    return None if kibibytes is None else int(kibibytes) * 1024
