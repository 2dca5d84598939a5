"""Joules of this machine while something runs, from the counters of
inference/cost/energy_readers.py.

A counter that cannot be read is unavailable, with the reason; it never counts as 0. All readers see
whole devices, not processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from inference.cost.quantity import Figure, at_least


class EnergyReader(Protocol):
    """One counter of energy."""

    def joules(self) -> Figure:
        """Return joules since a moment of the reader's choice; never raises.

        Readers that integrate power have to be asked often.
        """
        ...


class EnergyMeter:
    """Context in which energy is counted: whole devices, idle power included.

    parts: joules by each reader, once the context has ended
    sample_seconds: how often readers are asked, for counters that wrap and readers that integrate

    The readers belong to the meter, which asks them on a thread of its own.
    """

    parts: tuple[Figure, ...]

    def __init__(
        self,
        readers: Sequence[EnergyReader],
        sample_seconds: float = 0.2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._readers, self._sample_seconds, self._clock = tuple(readers), sample_seconds, clock
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="energy", daemon=True)

    def __enter__(self) -> EnergyMeter:
        self._started = self._clock()
        self._first = self._read()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        last, seconds = self._read(), self._clock() - self._started
        self.parts = tuple(
            _used(first, then, seconds) for first, then in zip(self._first, last, strict=True)
        )

    @property
    def known(self) -> Figure:
        """Sum in joules of the parts that could be read: an estimate from below where others
        could not.
        """
        return at_least(self.parts)

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
