"""What is read while one text is made, besides its Completion: joules of this machine, peak
memory of this process and of the target's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from inference.cost.energy import EnergyMeter, EnergyReader
from inference.cost.quantity import Figure
from outrider.completion import Completion, Request

_RESET_PEAK = "5"  # proc(5), clear_refs


@dataclass(frozen=True)
class Reading:
    """One text and what it took. joules: of this machine.  Memory in bytes resident; None where
    it cannot be read.
    """

    done: Completion
    joules: Figure
    memory_here: int | None
    memory_target: int | None


@dataclass(frozen=True)
class Gauges:
    """readers: of this machine's energy.  target_pid: of a target on this machine that was
    started here.
    """

    readers: Sequence[EnergyReader]
    target_pid: int | None

    def read(self, complete: Callable[[Request], Completion], request: Request) -> Reading:
        """Make the text."""
        reset_peak("self")
        if self.target_pid is not None:
            reset_peak(self.target_pid)
        with EnergyMeter(self.readers) as meter:
            done = complete(request)
        target = None if self.target_pid is None else peak_memory(self.target_pid)
        return Reading(done, meter.energy.known, peak_memory("self"), target)


def reset_peak(pid: int | str) -> None:
    """Let a process's peak start from what it holds now; where that cannot be asked for, peaks
    are of its whole life.
    """
    try:
        Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)
    except OSError:
        return


def peak_memory(pid: int | str) -> int | None:
    """Bytes; None where there is no /proc."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    kibibytes = next((line.split()[1] for line in lines if line.startswith("VmHWM:")), None)
    return None if kibibytes is None else int(kibibytes) * 1024
