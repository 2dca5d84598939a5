"""Measures the energy of this machine's whole devices by the counters of NVIDIA boards, CPU
packages (RAPL), Apple and Neuron devices. What cannot be read is unavailable with the reason, never
0. The Neuron and Apple readers have not yet run on hardware.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from inference.cost.billing import Figure, at_least
from inference.errors import install


class EnergyReader(Protocol):
    """An energy counter."""

    def joules(self) -> Figure:
        """Return joules since an arbitrary start; never raises.

        Must be called often if the reader integrates power.
        """
        ...


class EnergyMeter:
    """Context manager that measures the energy of whole devices, including idle power.

    readings: joules of each reader, set when the context ends
    sample_seconds: interval between readings, for counters that wrap and readers that integrate

    The meter reads its readers on its own thread, so they must not be shared.
    """

    readings: tuple[Figure, ...]

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
        self.readings = tuple(
            _used(first, then, seconds) for first, then in zip(self._first, last, strict=True)
        )

    @property
    def joules(self) -> Figure:
        """Sum of all readings in joules; a lower bound if some counters could not be read."""
        return at_least(self.readings)

    def _sample(self) -> None:
        while not self._ended.wait(self._sample_seconds):
            self._read()

    def _read(self) -> list[Figure]:
        return [reader.joules() for reader in self._readers]


def _used(first: Figure, last: Figure, seconds: float) -> Figure:
    """Return the joules between two readings of a counter.

    A running device uses energy, so a counter that did not advance is invalid: some need a
    privileged tool to advance, others are updated once a minute.
    """
    if first.value is None or last.value is None:
        return first if first.value is None else last
    joules = last.value - first.value
    if joules <= 0:
        return Figure.unavailable(f"{last.source}: did not advance in {seconds:.1f} s")
    return Figure(joules, max(first.quality, last.quality), last.source)


POWERCAP = Path("/sys/class/powercap")
NEURON_DEVICES = Path("/sys/devices/virtual/neuron_device")
NVIDIA_DRIVER = Path("/proc/driver/nvidia")
_INSTALL = install("energy")


def find_readers() -> list[EnergyReader]:
    """Return a reader for each device of this machine. For a device without access, the reader is
    an Unreadable with the reason.
    """
    if sys.platform == "darwin":
        return apple_readers()
    return [*rapl_readers(POWERCAP), *nvml_readers(), *neuron_readers(NEURON_DEVICES)]


class Unreadable:
    """A device whose energy cannot be read, with the reason."""

    def __init__(self, reason: str) -> None:
        self._figure = Figure.unavailable(reason)

    def joules(self) -> Figure:
        return self._figure


class RaplReader:
    """A zone of the kernel's power capping tree: a CPU package, or its memory.

    The counter is in uJ and wraps.
    """

    def __init__(self, zone: Path) -> None:
        """Raises OSError if the zone cannot be read; since Linux 5.10 that needs root."""
        self._counter = zone / "energy_uj"
        self._range = int((zone / "max_energy_range_uj").read_text())
        self._source = f"RAPL {(zone / 'name').read_text().strip()}"
        self._last = int(self._counter.read_text())
        self._microjoules = 0

    def joules(self) -> Figure:
        try:
            now = int(self._counter.read_text())
        except OSError as error:
            return Figure.unavailable(f"{self._source}: {error.strerror}")
        self._microjoules += now - self._last + self._range * (now < self._last)
        self._last = now
        return Figure.measured(self._microjoules / 1e6, self._source)


def rapl_readers(powercap: Path) -> list[EnergyReader]:
    """Return readers for CPU packages, and for memory that has its own zone.

    Core zones are part of a package, and psys contains packages, so both are skipped.
    """
    readers: list[EnergyReader] = []
    for zone in sorted(powercap.glob("intel-rapl:*")):
        name = (zone / "name").read_text().strip()
        if not name.startswith("package") and name != "dram":
            continue
        try:
            readers.append(RaplReader(zone))
        except OSError as error:
            why = f"{error.strerror} ({zone / 'energy_uj'} is readable by root only)"
            readers.append(Unreadable(f"RAPL {name}: {why}"))
    return readers or [
        Unreadable(f"CPU: no counter under {powercap}, as in virtual machines and on EC2")
    ]


class NvmlCounter:
    """The energy counter of an NVIDIA board, in mJ since the driver was loaded (Volta or later)."""

    def __init__(self, nvml: Any, board: Any, source: str) -> None:
        self._nvml, self._board, self._source = nvml, board, source

    def joules(self) -> Figure:
        try:
            millijoules = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._board)
        except self._nvml.NVMLError as error:
            return Figure.unavailable(f"{self._source}: {error}")
        return Figure.measured(millijoules / 1e3, f"{self._source}, energy counter")


class NvmlPower:
    """An NVIDIA board without an energy counter. Integrates power (mW) between calls."""

    def __init__(self, nvml: Any, board: Any, source: str) -> None:
        self._nvml, self._board, self._source = nvml, board, source
        self._joules = 0.0
        self._last: tuple[float, float] | None = None  # seconds, watts

    def joules(self) -> Figure:
        try:
            now, watts = time.monotonic(), self._nvml.nvmlDeviceGetPowerUsage(self._board) / 1e3
        except self._nvml.NVMLError as error:
            return Figure.unavailable(f"{self._source}: {error}")
        if self._last is not None:
            then, before = self._last
            self._joules += (now - then) * (before + watts) / 2
        self._last = now, watts
        return Figure.measured(self._joules, f"{self._source}, power sampled")


def nvml_readers(driver: Path = NVIDIA_DRIVER) -> list[EnergyReader]:
    """Return a reader for each NVIDIA board; none without an NVIDIA driver."""
    try:
        import pynvml
    except ImportError:
        return [Unreadable(f"NVIDIA: {_INSTALL}")] if driver.exists() else []
    try:
        pynvml.nvmlInit()
        return [_board(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return []
    except pynvml.NVMLError as error:
        return [Unreadable(f"NVIDIA: {error}")]


def _board(nvml: Any, index: int) -> EnergyReader:
    board = nvml.nvmlDeviceGetHandleByIndex(index)
    source = f"{nvml.nvmlDeviceGetName(board)} {index}"
    try:
        nvml.nvmlDeviceGetTotalEnergyConsumption(board)
    except nvml.NVMLError_NotSupported:
        return NvmlPower(nvml, board, source)
    return NvmlCounter(nvml, board, source)


class AppleReader:
    """Sums counters (mJ) that zeus_apple_silicon reads from IOReport. Needs no root."""

    def __init__(self, monitor: Any, fields: Sequence[str], source: str) -> None:
        self._monitor, self._fields, self._source = monitor, fields, source

    def joules(self) -> Figure:
        try:
            metrics = self._monitor.get_cumulative_energy()
        except RuntimeError as error:
            return Figure.unavailable(f"{self._source}: {error}")
        counted = [getattr(metrics, field) for field in self._fields]
        millijoules = [value for value in counted if value is not None]
        if not millijoules:
            return Figure.unavailable(f"{self._source}: not counted on this processor")
        return Figure.measured(sum(millijoules) / 1e3, self._source)


def apple_readers() -> list[EnergyReader]:
    """Return two readers: one for CPU and memory, one for the GPU.

    On some Macs, the counters of CPU and memory only advance after `sudo powermetrics` has run.
    """
    try:
        import zeus_apple_silicon
    except ImportError:
        return [Unreadable(f"Apple processor: {_INSTALL}")]
    try:
        monitor = zeus_apple_silicon.AppleEnergyMonitor()
    except RuntimeError as error:
        return [Unreadable(f"Apple processor: {error}")]
    return [
        AppleReader(monitor, ("cpu_total_mj", "dram_mj"), "Apple CPU and memory"),
        AppleReader(monitor, ("gpu_mj", "gpu_sram_mj", "ane_mj"), "Apple GPU and neural engine"),
    ]


class NeuronReader:
    """A Neuron device, whose joules are unknown: its driver reports mean power per minute, without
    idle power, as a percentage of a maximum that AWS does not publish.
    """

    def __init__(self, utilization: Path, device: str) -> None:
        self._path, self._device = utilization, device

    def joules(self) -> Figure:
        try:
            status, _epoch, _low, _high, mean = self._path.read_text().strip().split(",")
            percent = float(mean)
        except (OSError, ValueError) as error:
            return Figure.unavailable(f"{self._device}: {error}")
        if status != "POWER_STATUS_VALID":
            return Figure.unavailable(f"{self._device}: {status}")
        return Figure.unavailable(
            f"{self._device}: {percent:.2f} % of a maximum that AWS does not publish"
        )


def neuron_readers(devices: Path) -> list[EnergyReader]:
    """Return a reader for each Neuron device.

    Driver 2.31 moved the file, so it is searched for in the device's directory.
    """
    return [
        NeuronReader(path, device.name)
        for device in sorted(devices.glob("neuron*"))
        for path in sorted(device.glob("**/power/utilization"))
    ]
