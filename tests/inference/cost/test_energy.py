"""Energy readers on recorded trees and stand-ins; what cannot be read is never 0."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from inference.cost import energy
from inference.cost.billing import Figure, Quality
from inference.cost.energy import (
    AppleReader,
    EnergyMeter,
    NeuronReader,
    Unreadable,
    find_readers,
    neuron_readers,
    nvml_readers,
    rapl_readers,
)
from tests.support.clock import Clock


def zone(
    powercap: Path, number: str, name: str, microjoules: int, most: int = 262_143_328_850
) -> Path:
    path = powercap / f"intel-rapl:{number}"
    path.mkdir(parents=True)
    (path / "name").write_text(f"{name}\n")
    (path / "max_energy_range_uj").write_text(f"{most}\n")
    advance(path, microjoules)
    return path


def advance(path: Path, microjoules: int) -> None:
    (path / "energy_uj").write_text(f"{microjoules}\n")


def test_rapl_adds_packages_and_memory_but_not_what_a_package_contains(tmp_path: Path) -> None:
    zones = [
        zone(tmp_path, "0", "package-0", 5_000_000),
        zone(tmp_path, "0:0", "core", 1),
        zone(tmp_path, "0:1", "dram", 0),
        zone(tmp_path, "1", "psys", 9),
    ]
    meter = EnergyMeter(rapl_readers(tmp_path))
    partly = EnergyMeter([*rapl_readers(tmp_path), Unreadable("board: no counter")])
    with meter, partly:
        for path, after in zip(zones, (8_500_000, 3_000_001, 250_000, 9_000_009), strict=True):
            advance(path, after)
    assert [(part.value, part.source) for part in meter.readings] == [
        (3.5, "RAPL package-0"),
        (0.25, "RAPL dram"),
    ]
    assert (meter.joules.value, meter.joules.quality) == (3.75, Quality.MEASURED)
    known = partly.joules
    assert (known.value, known.quality, known.lower_bound) == (3.75, Quality.ESTIMATED, True)
    assert "RAPL package-0" in known.source
    assert "board: no counter" in known.source


def test_a_rapl_counter_that_wraps_goes_on_counting(tmp_path: Path) -> None:
    path = zone(tmp_path, "0", "package-0", 9_000_000, most=10_000_000)
    (reader,) = rapl_readers(tmp_path)
    readings = []
    for counter in (9_000_000, 500_000, 9_500_000, 1_000_000):
        advance(path, counter)
        readings.append(reader.joules().value)
    assert readings == [0.0, 1.5, 10.5, 12.0]


def test_a_counter_that_cannot_be_read_is_unavailable_with_the_reason(tmp_path: Path) -> None:
    (missing,) = rapl_readers(tmp_path / "powercap")
    assert missing.joules().value is None
    assert "EC2" in missing.joules().source
    path = zone(tmp_path, "0", "package-0", 1)
    (path / "energy_uj").unlink()
    (path / "energy_uj").mkdir()
    figure = rapl_readers(tmp_path)[0].joules()
    assert figure.quality is Quality.UNAVAILABLE
    assert "RAPL package-0: Is a directory" in figure.source
    assert "root only" in figure.source


def apple(name: str, counted: tuple[str, ...], **millijoules: int) -> AppleReader:
    """Of a chip that counts these alone: other metrics of zeus_apple_silicon are None."""
    fields = ("cpu_total_mj", "dram_mj", "gpu_mj", "gpu_sram_mj", "ane_mj")
    metrics = SimpleNamespace(**{field: millijoules.get(field) for field in fields})
    monitor: Any = SimpleNamespace(get_cumulative_energy=lambda: metrics)
    return AppleReader(monitor, counted, name)


def test_apples_counters_are_added_where_they_count() -> None:
    reader = apple("GPU", ("gpu_mj", "gpu_sram_mj", "ane_mj"), gpu_mj=1500, ane_mj=500)
    assert reader.joules() == Figure.measured(2.0, "GPU")
    assert apple("GPU", ("gpu_mj",)).joules().value is None
    still, clock = apple("CPU", ("cpu_total_mj", "dram_mj"), cpu_total_mj=500, dram_mj=20), Clock()
    clock.now = 3.0
    with EnergyMeter([still], clock=clock) as meter:
        clock.now += 7.5
    (part,) = meter.readings  # a counter that stood still is not zero
    assert part.value is None
    assert part.source.startswith("CPU: ")
    assert " 7.5 s" in part.source


def board(patch: pytest.MonkeyPatch, energy: list[int] | None, power: list[int]) -> None:
    """One board as NVIDIA's binding answers for it. energy: in mJ; None before Volta"""

    def total_energy(handle: object) -> int:
        if energy is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return energy.pop(0)

    def usage(handle: object) -> int:
        if not power:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return power.pop(0)

    patch.setattr(pynvml, "nvmlInit", lambda: None)
    patch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 1)
    patch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    patch.setattr(pynvml, "nvmlDeviceGetName", lambda handle: "NVIDIA Test")
    patch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", total_energy)
    patch.setattr(pynvml, "nvmlDeviceGetPowerUsage", usage)


def test_a_boards_energy_counter_is_in_millijoules(monkeypatch: pytest.MonkeyPatch) -> None:
    board(monkeypatch, [9_000_000_000_000, 9_000_000_000_000, 9_000_000_012_500], [])
    (reader,) = nvml_readers()
    with EnergyMeter([reader], sample_seconds=60.0) as meter:
        pass
    assert meter.readings == (Figure.measured(12.5, "NVIDIA Test 0, energy counter"),)


def test_a_board_without_a_counter_has_its_power_integrated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    board(monkeypatch, None, [20_000, 40_000, 60_000])
    (reader,) = nvml_readers()
    clock = Clock()
    monkeypatch.setattr(energy, "time", SimpleNamespace(monotonic=clock))
    readings = []
    for step in (0.0, 1.0, 2.0):
        clock.now += step
        readings.append(reader.joules().value)
    assert readings == [0.0, 30.0, 130.0]
    lost = reader.joules()
    assert (lost.value, lost.source) == (None, "NVIDIA Test 0: GPU is lost")


def test_a_machine_without_nvidias_driver_has_no_board(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH]

    def fail() -> None:
        raise pynvml.NVMLError(errors.pop(0))

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert nvml_readers() == []
    assert "version mismatch" in nvml_readers()[0].joules().source


def test_a_machine_without_the_package_names_the_install_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml_readers(tmp_path / "absent") == []
    assert nvml_readers(tmp_path)[0].joules().source == "NVIDIA: pip install '.[energy]'"
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", None)
    (reader,) = find_readers()
    assert reader.joules().source == "Apple processor: pip install '.[energy]'"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("POWER_STATUS_VALID,1000,0.86,25.00,18.86", "neuron0: 18.86 % "),  # of no known watts
        ("POWER_STATUS_NO_DATA,0,0.00,0.00,0.00", "neuron0: POWER_STATUS_NO_DATA"),
        ("", "neuron0: "),
        ("POWER_STATUS_VALID,1,2,3,much", "neuron0: "),
    ],
)
def test_neurons_percentages_are_no_joules(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "neuron0" / "moved" / "power" / "utilization"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (reader,) = neuron_readers(tmp_path)
    figure = reader.joules()
    assert figure.value is None
    assert figure.source.startswith(says)
    assert NeuronReader(tmp_path / "absent", "neuron0").joules().value is None


def test_readers_are_asked_while_the_meter_runs() -> None:
    class Counting:
        asked = 0

        def joules(self) -> Figure:
            self.asked += 1
            return Figure.measured(float(self.asked), "asked")

    reader = Counting()
    with EnergyMeter([reader], sample_seconds=0.001) as meter:
        while reader.asked < 5:
            pass
    assert (meter.readings[0].value or 0) >= 4
    with EnergyMeter(find_readers()) as meter:  # those of this machine
        sum(range(100_000))
    assert all(part.source and (part.value is None or part.value > 0) for part in meter.readings)
