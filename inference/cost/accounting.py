"""Dollars and joules per token, for every architecture under one accounting (docs/cost.md).

The target is paid by the wall-clock hour while it is held, whether it computes or waits. The
draft's machine is the user's own and costs electricity. Traffic is paid in both directions. A
dollar figure is as good as its seconds and joules: measured, estimated or unavailable. Prices are
inputs; whoever prints a dollar prints the price's source and date beside it. Pure: no clock, no
price list, no energy reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from inference.cost.quantity import Figure, at_least, total

SECONDS_PER_HOUR = 3600.0
JOULES_PER_KWH = 3.6e6
BYTES_PER_GB = 1e9


@dataclass(frozen=True)
class Rates:
    """Unit prices in US dollars. None is a price that nobody has stated."""

    target_usd_per_hour: float  # of the whole machine
    usd_per_kwh: float | None = None
    usd_per_gb_to_target: float | None = None
    usd_per_gb_from_target: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be a finite price, 0 or more: got {value}")

    def electricity(self, joules: Figure) -> Figure:
        """US dollars for energy."""
        if self.usd_per_kwh is None:
            return Figure.unavailable("no price of electricity was given")
        return joules.times(self.usd_per_kwh / JOULES_PER_KWH)

    def upload(self, size: float) -> Figure:
        """US dollars for so many bytes to the target."""
        return _traffic(size, self.usd_per_gb_to_target, "to")

    def download(self, size: float) -> Figure:
        """US dollars for so many bytes from the target."""
        return _traffic(size, self.usd_per_gb_from_target, "from")


@dataclass(frozen=True)
class Bill:
    """Figures per token: costs in US dollars, energies in joules, latency in seconds."""

    latency: Figure
    api_cost: Figure  # of the target's hours
    draft_electricity_cost: Figure
    upload_cost: Figure
    download_cost: Figure
    draft_energy: Figure
    target_energy: Figure

    @property
    def total_cost(self) -> Figure:
        """US dollars per token. Unavailable where a part is; `known_cost` is then a lower bound."""
        return total(self._costs)

    @property
    def known_cost(self) -> Figure:
        return at_least(self._costs)

    @property
    def energy_total(self) -> Figure:
        return total([self.draft_energy, self.target_energy])

    @property
    def _costs(self) -> list[Figure]:
        return [self.api_cost, self.draft_electricity_cost, self.upload_cost, self.download_cost]


OBJECTIVES: Mapping[str, Callable[[Bill], Figure]] = {
    "total_cost": lambda bill: bill.total_cost,
    "api_cost": lambda bill: bill.api_cost,
    "energy_total": lambda bill: bill.energy_total,
    "draft_energy": lambda bill: bill.draft_energy,
    "target_energy": lambda bill: bill.target_energy,
    "latency": lambda bill: bill.latency,
}
"""What a plan may be asked to minimise, by the user's name for it. Values are per token."""

COSTS = ("total_cost", "api_cost")
"""Objectives in US dollars."""

ENERGIES = ("energy_total", "draft_energy", "target_energy")
"""Objectives in joules."""


def hire_usd(seconds: float, usd_per_hour: float) -> float:
    """Return the US dollars for holding a machine for `seconds`."""
    return usd_per_hour * seconds / SECONDS_PER_HOUR


def assumed_joules(watts: float, seconds: float) -> Figure:
    """Return the energy of a power that the user states: always an estimate.

    Raises ValueError for a power that is not above 0 W.
    """
    if not watts > 0:
        raise ValueError(f"an assumed power is above 0 W: got {watts}")
    return Figure.estimated(watts * seconds, f"{watts:g} W assumed")


def _traffic(size: float, usd_per_gb: float | None, direction: str) -> Figure:
    if size == 0:
        return Figure.measured(0.0, "no traffic")
    if usd_per_gb is None:
        return Figure.unavailable(f"no price of traffic {direction} the target was given")
    return Figure.measured(size / BYTES_PER_GB * usd_per_gb, "counted bytes")
