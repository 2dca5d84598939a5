"""Dollars and joules per token, computed the same for all architectures (docs/cost.md). Pure.

The target is billed by wall-clock time while it is in use, whether it computes or waits. The
draft's machine belongs to the user and costs electricity. Traffic costs the same in both
directions. A dollar figure inherits the quality of its inputs: measured, estimated or unavailable.

Every objective is linear in the seconds billed, the seconds drafted, and the bytes sent in each
direction. So four unit prices, one for each of these quantities, define an objective.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

from inference.errors import InvalidRequest
from inference.planner.prices import SPEED, UnitPrices, Usage


class Quality(IntEnum):
    """Origin of a figure; a greater value is worse. A sum has the quality of its worst summand."""

    MEASURED = 0
    ESTIMATED = 1
    UNAVAILABLE = 2


@dataclass(frozen=True)
class Figure:
    """A value with its quality and source. The code that uses it defines the unit.

    An unavailable figure has no value; its source is the reason. Raises ValueError for a
    non-finite value.
    """

    value: float | None
    quality: Quality
    source: str
    lower_bound: bool = False  # whether it is a sum that lacks unknown summands

    def __post_init__(self) -> None:
        if (self.value is None) != (self.quality is Quality.UNAVAILABLE):
            raise ValueError(
                f"a figure has a value unless it is unavailable: {self.value} is "
                f"{self.quality.name.lower()}"
            )
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"a figure is finite: got {self.value} from {self.source}")

    @classmethod
    def measured(cls, value: float, source: str) -> Figure:
        return cls(value, Quality.MEASURED, source)

    @classmethod
    def estimated(cls, value: float, source: str) -> Figure:
        return cls(value, Quality.ESTIMATED, source)

    @classmethod
    def unavailable(cls, reason: str) -> Figure:
        return cls(None, Quality.UNAVAILABLE, reason)

    def times(self, factor: float) -> Figure:
        """Return this figure with its value multiplied, to convert units or take a share."""
        return self if self.value is None else replace(self, value=self.value * factor)

    def record(self) -> dict[str, object]:
        """Return plain data for JSON."""
        return {**vars(self), "quality": self.quality.name.lower()}


def total(figures: Sequence[Figure]) -> Figure:
    """Return the sum. It is unavailable, with the reasons, if any figure is unavailable."""
    missing = [figure.source for figure in figures if figure.value is None]
    if missing or not figures:
        return Figure.unavailable(_joined(missing) or "there is nothing to add up")
    return Figure(
        sum(figure.value or 0.0 for figure in figures),
        max(figure.quality for figure in figures),
        _joined([figure.source for figure in figures]),
        any(figure.lower_bound for figure in figures),
    )


def at_least(figures: Sequence[Figure]) -> Figure:
    """Return the sum of the available figures. If any are missing, it is an estimated lower bound
    whose source names them.
    """
    available = [figure for figure in figures if figure.value is not None]
    missing = [figure.source for figure in figures if figure.value is None]
    if not available or not missing:
        return total(figures)
    have = total(available)
    return Figure(
        have.value,
        Quality.ESTIMATED,
        f"at least, from {have.source}; not counted: {_joined(missing)}",
        lower_bound=True,
    )


def _joined(sources: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(sources))


SECONDS_PER_HOUR = 3600.0
JOULES_PER_KWH = 3.6e6
BYTES_PER_GB = 1e9

PER_MILLION = 1e6
"""Number of tokens for which prices are displayed."""

COSTS = ("total_cost", "api_cost")
"""Objectives in US dollars."""

ENERGIES = ("energy_total", "draft_energy", "target_energy")
"""Objectives in joules."""

OBJECTIVES = (*COSTS, *ENERGIES, "latency")
"""Objectives that a plan may minimise, by flag value. All are per token."""

UNITS = tuple(Usage(*(float(index == unit) for index in range(4))) for unit in range(4))
"""For each field of Usage, a Usage with one unit of this field and 0 otherwise."""


@dataclass(frozen=True)
class Billing:
    """Prices in US dollars, and watts; None if not set.

    Raises ValueError for a negative or non-finite number.

    source: origin of the target's price, with its date if known; None without a price
    """

    usd_per_hour: float | None = None  # for the whole target machine
    usd_per_kwh: float | None = None
    usd_per_gb: float | None = None  # of traffic, in both directions
    draft_watts: float | None = None  # power of the draft's machine while it drafts
    target_watts: float | None = None  # power of the whole target machine
    source: str | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, float | int) and not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be finite, 0 or more: got {value}")

    @property
    def priced(self) -> bool:
        """Whether the target's price is set."""
        return self.usd_per_hour is not None

    def described(self, usd_per_hour: float) -> Billing:
        """Return these prices. If the target's price is not set, use the price that it reports.

        usd_per_hour: the reported price; 0 if there is none
        """
        if self.priced or not usd_per_hour:
            return self
        source = f"${usd_per_hour:g} an hour, as the target says"
        return replace(self, usd_per_hour=usd_per_hour, source=source)

    def figures(
        self, tokens: float, usage: Usage, draft_joules: Figure | None = None
    ) -> dict[str, Figure]:
        """Return each objective's value per token, and `known_cost`: the sum of the known costs in
        US dollars, which is a lower bound if some are unknown.

        tokens: number of tokens, or the expected number in a forecast
        draft_joules: measured energy; by default computed from draft_watts

        Raises ValueError unless tokens are above 0 and finite.
        """
        if not 0 < tokens < float("inf"):
            raise ValueError(f"cost per token needs tokens: got {tokens}")
        per_token = usage.times(1 / tokens)
        wall = Figure.measured(per_token.wall, "wall clock")
        drafting = draft_joules or _joules(self.draft_watts, usage.drafting, "draft")
        draft_energy = drafting.times(1 / tokens)
        target_energy = _joules(self.target_watts, usage.wall, "target").times(1 / tokens)
        api_cost = Figure.unavailable("no price of the target was given")
        if self.usd_per_hour is not None:
            api_cost = wall.times(hire_usd(1.0, self.usd_per_hour))
        electricity = Figure.unavailable("no price of electricity was given")
        if self.usd_per_kwh is not None:
            electricity = draft_energy.times(self.usd_per_kwh / JOULES_PER_KWH)
        traffic = _traffic(per_token.bytes_up + per_token.bytes_down, self.usd_per_gb)
        costs = [api_cost, electricity, traffic]
        return {
            "total_cost": total(costs),
            "known_cost": at_least(costs),
            "api_cost": api_cost,
            "energy_total": total([draft_energy, target_energy]),
            "draft_energy": draft_energy,
            "target_energy": target_energy,
            "latency": wall,
        }

    def unit_prices(self, objective: str) -> UnitPrices:
        """Return the price of each unit of Usage under an objective.

        Raises InvalidRequest with the missing prices if the objective cannot be computed.
        """
        prices = [self.figures(1.0, unit)[objective] for unit in UNITS]
        missing = dict.fromkeys(
            reason for price in prices if price.value is None for reason in price.source.split("; ")
        )
        if missing:
            raise InvalidRequest(
                f"the objective {objective} cannot be computed: {'; '.join(missing)} (give 0 for "
                "what costs nothing)"
            )
        return UnitPrices(*(price.value or 0.0 for price in prices))

    @cached_property
    def known_prices(self) -> UnitPrices:
        """The price of each unit of Usage in US dollars; unknown prices count as 0."""
        return UnitPrices(*(self.figures(1.0, unit)["known_cost"].value or 0.0 for unit in UNITS))


def price_words(objective: str, per_token: float) -> str:
    """Format an objective's value per token in its usual unit."""
    if objective in COSTS:
        return f"${per_token * PER_MILLION:.4g} a million tokens"
    if objective == "latency":
        return f"{per_token * 1e3:.4g} ms a token"
    return f"{per_token:.4g} J a token"


def blend(cost: UnitPrices, weight: float, reference: Usage) -> UnitPrices:
    """Combine speed and cost into unit prices for a weighted objective.

    weight: weight of the cost, 0 to 1
    reference: usage per token in the fastest setting, in which speed and cost both count as 1
    """
    speed = SPEED.times((1 - weight) / max(SPEED.of(reference), 1e-12))
    return speed.plus(cost.times(weight / max(cost.of(reference), 1e-30))) if weight else speed


def hire_usd(seconds: float, usd_per_hour: float) -> float:
    """Return the US dollars for renting a machine for `seconds`."""
    return usd_per_hour * seconds / SECONDS_PER_HOUR


def _joules(watts: float | None, seconds: float, whose: str) -> Figure:
    if seconds == 0 or watts == 0:
        return Figure.measured(0.0, f"no time of the {whose}")
    if watts is None:
        return Figure.unavailable(f"the watts of the {whose} are not set")
    return Figure.estimated(watts * seconds, f"{watts:g} W assumed")


def _traffic(size: float, usd_per_gb: float | None) -> Figure:
    if size == 0:
        return Figure.measured(0.0, "no traffic")
    if usd_per_gb is None:
        return Figure.unavailable("no price of traffic was given")
    return Figure.measured(size / BYTES_PER_GB * usd_per_gb, "counted bytes")
