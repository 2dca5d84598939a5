"""Joules of this machine while something runs, from the counters of
inference/cost/energy_readers.py.

A counter that cannot be read is unavailable, with the reason; it never counts as 0. All readers see
whole devices, not processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from inference.cost.quantity import Figure, at_least, total


class EnergyReader(Protocol):
    """One counter of energy."""

    def joules(self) -> Figure:
        """Return joules since a moment of the reader's choice; never raises.

        Readers that integrate power have to be asked often.
        """
        ...


@dataclass(frozen=True)
class Energy:
    """Energy used in `seconds`, one part for each reader: whole devices, idle power included."""

    seconds: float
    parts: tuple[Figure, ...]

    @property
    def total(self) -> Figure:
        """Sum in joules. Unavailable where a part is."""
        return total(self.parts)

    @property
    def known(self) -> Figure:
        """Sum in joules of the parts that could be read: an estimate from below where others
        could not.
        """
        return at_least(self.parts)

    @property
    def watts(self) -> Figure:
        """Mean power in watts."""
        return self.known.times(1 / self.seconds)

    def above_idle(self, idle: Energy) -> Figure:
        """Joules beyond what the same readers saw while nothing ran. The source states both
        figures.
        """
        if idle.watts.value is None or self.known.value is None:
            return total([self.known, idle.watts])
        joules = self.known.value - idle.watts.value * self.seconds
        if joules <= 0:
            return Figure.unavailable(
                f"{self.known.source}: not above the {idle.watts.value:.2f} W of idling"
            )
        source = f"{self.known.source}, less {idle.watts.value:.2f} W of idling"
        return Figure(joules, max(self.known.quality, idle.known.quality), source)


class EnergyMeter:
    """Context in which energy is counted. Afterwards `energy` has the result.

    sample_seconds: how often readers are asked, for counters that wrap and readers that integrate

    The readers belong to the meter, which asks them on a thread of its own.
    """

    def __init__(
        self,
        readers: Sequence[EnergyReader],
        sample_seconds: float = 0.2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._readers, self._sample_seconds, self._clock = tuple(readers), sample_seconds, clock
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="energy", daemon=True)
        self._energy: Energy | None = None

    def __enter__(self) -> EnergyMeter:
        self._started = self._clock()
        self._first = self._read()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        last, seconds = self._read(), self._clock() - self._started
        self._energy = Energy(
            seconds,
            tuple(
                _used(first, then, seconds) for first, then in zip(self._first, last, strict=True)
            ),
        )

    @property
    def energy(self) -> Energy:
        """The energy used, once the context has ended."""
        assert self._energy is not None, "the meter still runs"
        return self._energy

    def _sample(self) -> None:
        while not self._ended.wait(self._sample_seconds):
            self._read()

    def _read(self) -> list[Figure]:
        return [reader.joules() for reader in self._readers]


def _used(first: Figure, last: Figure, seconds: float) -> Figure:
    """Return the joules between two readings of one counter.

    A device that is on uses energy, so a counter that stood still says nothing. Some stand still
    until a privileged tool runs, others are published once a minute.
    """
    if first.value is None or last.value is None:
        return first if first.value is None else last
    joules = last.value - first.value
    if joules <= 0:
        return Figure.unavailable(f"{last.source}: did not advance in {seconds:.1f} s")
    return Figure(joules, max(first.quality, last.quality), last.source)
