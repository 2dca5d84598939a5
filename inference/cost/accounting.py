"""Dollars and joules per token, for every architecture under one accounting (docs/cost.md).

The target is paid by the wall-clock hour while it is held, whether it computes or waits. The
draft's machine is the user's own and costs electricity. Traffic is paid in both directions. A
dollar figure is as good as its seconds and joules: measured, estimated or unavailable. Prices are
inputs; whoever prints a dollar prints the price's source and date beside it. Pure: no clock, no
price list, no energy reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from inference.cost.quantity import Figure, at_least, total

SECONDS_PER_HOUR = 3600.0
JOULES_PER_KWH = 3.6e6
BYTES_PER_GB = 1e9
SHORTEST_LAUNCH_SECONDS = 60.0
"""EC2 bills Linux instances by the second, and at least a minute for each launch."""


@dataclass(frozen=True)
class Rates:
    """Unit prices in US dollars. None is a price that nobody has stated."""

    target_usd_per_hour: float  # of the whole machine
    standing_usd_per_hour: float = 0.0  # volume and address, for as long as the machine runs
    usd_per_kwh: float | None = None
    usd_per_gb_to_target: float | None = None
    usd_per_gb_from_target: float | None = None
    pays_target_electricity: bool = False  # a rented hour includes its electricity

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be a finite price, 0 or more: got {value}")


@dataclass(frozen=True)
class Usage:
    """What one architecture used to make `tokens` tokens."""

    tokens: float  # an expected number in a forecast
    wall_seconds: Figure  # request to last token, idle time included; the target is held all of it
    busy_seconds: Figure  # of these, prefill and forwards on the target
    target_share: float  # of the target that is charged: 1/n where n such sessions share it
    bytes_to_target: float
    bytes_from_target: float
    draft_joules: Figure  # of the draft's machine
    target_joules: Figure  # of the whole target machine during wall_seconds

    def __post_init__(self) -> None:
        if not 0 < self.tokens < float("inf"):
            raise ValueError(f"cost is counted by the token, and there are {self.tokens}")
        if not 0 < self.target_share <= 1:
            raise ValueError(
                f"target_share is above 0, and 1 is the whole target: got {self.target_share}"
            )
        if self.bytes_to_target < 0 or self.bytes_from_target < 0:
            raise ValueError(
                f"bytes cannot be negative: {self.bytes_to_target} up, {self.bytes_from_target} "
                "down"
            )

    @property
    def idle_seconds(self) -> Figure:
        """Seconds in which the target was held and did not compute.

        Both ends have their own clock: slightly more busy than held counts as no idle time.
        """
        idle = total([self.wall_seconds, self.busy_seconds.times(-1)])
        return replace(idle, value=max(0.0, idle.value)) if idle.value is not None else idle


@dataclass(frozen=True)
class Bill:
    """Figures per token: costs in US dollars, energies in joules, latency in seconds."""

    latency: Figure
    api_cost: Figure  # of the target's hours
    idle_cost: Figure  # the part of api_cost during which the target waited
    draft_electricity_cost: Figure
    target_electricity_cost: Figure | None  # None where the hours include it
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
        own = [] if self.target_electricity_cost is None else [self.target_electricity_cost]
        return [
            self.api_cost,
            self.draft_electricity_cost,
            *own,
            self.upload_cost,
            self.download_cost,
        ]


def bill(usage: Usage, rates: Rates) -> Bill:
    """Return the cost per token.

    It is target_share of the hours held, electricity and traffic, divided by the tokens made.
    """
    usd_per_second = hire_usd(
        usage.target_share, rates.target_usd_per_hour + rates.standing_usd_per_hour
    )
    draft_energy = usage.draft_joules.times(1 / usage.tokens)
    target_energy = usage.target_joules.times(usage.target_share / usage.tokens)
    return Bill(
        latency=usage.wall_seconds.times(1 / usage.tokens),
        api_cost=usage.wall_seconds.times(usd_per_second / usage.tokens),
        idle_cost=usage.idle_seconds.times(usd_per_second / usage.tokens),
        draft_electricity_cost=_electricity(draft_energy, rates.usd_per_kwh),
        target_electricity_cost=_electricity(target_energy, rates.usd_per_kwh)
        if rates.pays_target_electricity
        else None,
        upload_cost=_traffic(
            usage.bytes_to_target / usage.tokens, rates.usd_per_gb_to_target, "to"
        ),
        download_cost=_traffic(
            usage.bytes_from_target / usage.tokens, rates.usd_per_gb_from_target, "from"
        ),
        draft_energy=draft_energy,
        target_energy=target_energy,
    )


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


def launch_usd(seconds: float, usd_per_hour: float) -> float:
    """Return the US dollars for an EC2 instance that ran for `seconds` and was stopped.

    The first minute is paid in full.
    """
    return hire_usd(max(seconds, SHORTEST_LAUNCH_SECONDS), usd_per_hour)


def assumed_joules(watts: float, seconds: float) -> Figure:
    """Return the energy of a power that the user states: always an estimate.

    Raises ValueError for a power that is not above 0 W.
    """
    if not watts > 0:
        raise ValueError(f"an assumed power is above 0 W: got {watts}")
    return Figure.estimated(watts * seconds, f"{watts:g} W assumed")


def expected_chain_tokens(length: int, acceptance: float) -> float:
    """Return the expected tokens of a round that drafts a chain, the target's own included.

    B = 1 + a + ... + a^length (Leviathan et al. 2023, equation 1). Raises ValueError for an
    acceptance or a length that cannot be.
    """
    if length < 0 or not 0 <= acceptance <= 1:
        raise ValueError(
            f"a chain has a length of 0 or more and an acceptance of 0 to 1: got {length} and "
            f"{acceptance}"
        )
    return sum(acceptance**depth for depth in range(length + 1))


def chain_cost_per_token(
    length: int, acceptance: float, draft: float, verify: float, fixed: float, one_way: float
) -> float:
    """C(k, d) = (k (c_draft + c_verify) + 2 d + c_fixed) / B(a, k), in the arguments' unit.

    That unit is seconds, or the dollars of them. It is a ratio of expectations, never a mean of
    ratios (arXiv 2606.20591). There, the fixed cost is that of one more token.

    draft, verify: of one drafted token
    fixed: of a verification, whatever its length
    one_way: delay between the two machines
    """
    return (length * (draft + verify) + 2 * one_way + fixed) / expected_chain_tokens(
        length, acceptance
    )


def _electricity(joules: Figure, usd_per_kwh: float | None) -> Figure:
    return (
        Figure.unavailable("no price of electricity was given")
        if usd_per_kwh is None
        else joules.times(usd_per_kwh / JOULES_PER_KWH)
    )


def _traffic(size: float, usd_per_gb: float | None, direction: str) -> Figure:
    if size == 0:
        return Figure.measured(0.0, "no traffic")
    if usd_per_gb is None:
        return Figure.unavailable(f"no price of traffic {direction} the target was given")
    return Figure.measured(size / BYTES_PER_GB * usd_per_gb, "counted bytes")
