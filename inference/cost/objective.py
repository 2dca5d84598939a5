"""A user's goal as prices of the seconds and bytes that tokens take. Pure.

Every objective of inference/cost/accounting.py is linear in the seconds held, the seconds drafted
and the bytes sent. So a Tariff of four prices says the same. Its prices are read off the bills of
one unit each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from inference.cost.accounting import COSTS, OBJECTIVES, Rates, Usage, assumed_joules, bill
from inference.cost.quantity import Figure
from inference.errors import InvalidRequest

KNOB = {"tps": 0.0, "balanced": 0.5, "cost": 1.0}
"""Names of a weight: how much cost counts against speed."""

PER_MILLION = 1e6
"""Prices of tokens are stated per so many."""


class Effort(NamedTuple):
    """What some tokens took."""

    wall: float = 0.0  # seconds by the clock that the target was held
    drafting: float = 0.0  # seconds of drafting on this machine
    bytes_up: float = 0.0
    bytes_down: float = 0.0

    def plus(self, other: Effort) -> Effort:
        return Effort(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def times(self, factor: float) -> Effort:
        return Effort(*(part * factor for part in self))


class Tariff(NamedTuple):
    """Price of a unit of each part of an Effort, in the unit of an objective."""

    wall: float  # for a second
    drafting: float = 0.0  # for a second
    byte_up: float = 0.0
    byte_down: float = 0.0

    def of(self, effort: Effort) -> float:
        return sum(price * amount for price, amount in zip(self, effort, strict=True))

    def plus(self, other: Tariff) -> Tariff:
        return Tariff(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def times(self, factor: float) -> Tariff:
        return Tariff(*(price * factor for price in self))


UNITS = tuple(Effort(*(float(index == part) for index in range(4))) for part in range(4))
"""One unit of each part of an Effort."""

SPEED = Tariff(wall=1.0)
"""The objective of whoever wants speed alone: the price is the seconds themselves."""


@dataclass(frozen=True)
class Terms:
    """What bills are made of, besides the Effort."""

    rates: Rates
    target_share: float = 1.0  # of the target that is charged
    draft_watts: float | None = None  # of the draft's machine while it drafts; None: not known
    target_watts: float | None = None  # of the whole target machine; None: not known

    def usage(self, tokens: float, effort: Effort) -> Usage:
        """Return the Usage of these tokens, for inference.cost.accounting.bill()."""
        return Usage(
            tokens=tokens,
            wall_seconds=Figure.measured(effort.wall, "wall clock"),
            busy_seconds=Figure.unavailable("not asked for"),
            target_share=self.target_share,
            bytes_to_target=effort.bytes_up,
            bytes_from_target=effort.bytes_down,
            draft_joules=_joules(self.draft_watts, effort.drafting, "draft"),
            target_joules=_joules(self.target_watts, effort.wall, "target"),
        )

    def price(self, objective: str, tokens: float, effort: Effort) -> Figure:
        """Return the objective's value per token, in US dollars, joules or seconds."""
        return OBJECTIVES[objective](bill(self.usage(tokens, effort), self.rates))

    def tariff(self, objective: str) -> Tariff:
        """Return the prices of the units by this objective.

        Raises InvalidRequest, naming what is not known, where the objective cannot be computed.
        """
        prices = [self.price(objective, 1.0, unit) for unit in UNITS]
        missing = dict.fromkeys(
            reason for price in prices if price.value is None for reason in price.source.split("; ")
        )
        if missing:
            raise InvalidRequest(
                f"the objective {objective} cannot be computed: {'; '.join(missing)} (give 0 for "
                "what costs nothing)"
            )
        return Tariff(*(price.value or 0.0 for price in prices))

    def known_costs(self) -> Tariff:
        """Prices of the units in US dollars, as far as they are known: a lower bound."""
        bills = [bill(self.usage(1.0, unit), self.rates) for unit in UNITS]
        return Tariff(*(one.known_cost.value or 0.0 for one in bills))


@dataclass(frozen=True)
class Wish:
    """The user's goal: a weight of cost against speed, or a limit on one of them.

    With a limit, the other is made as good as it can be.
    """

    objective: str = "total_cost"
    weight: float = 0.0  # 0 is speed alone, 1 cost alone
    min_tps: float | None = None  # tokens a second to keep, at least cost
    max_per_token: float | None = None  # US dollars or joules to keep, at most speed

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InvalidRequest(
                f"an objective is one of {', '.join(OBJECTIVES)}: got {self.objective!r}"
            )
        if not 0 <= self.weight <= 1:
            raise InvalidRequest(
                f"--cs is tps, balanced, cost or 0 to 100: got {self.weight * 100:g}"
            )
        if self.min_tps is not None and self.max_per_token is not None:
            raise InvalidRequest("one limit at a time: tokens a second, or what a token may cost")
        for limit in (self.min_tps, self.max_per_token):
            if limit is not None and not 0 < limit < float("inf"):
                raise InvalidRequest(f"a limit is above 0: got {limit}")

    @property
    def speed_alone(self) -> bool:
        """Whether nothing but time has a price."""
        return self.weight == 0 and self.min_tps is None and self.max_per_token is None


def read_knob(text: str) -> float:
    """Return the weight that --cs names; raise InvalidRequest for anything else."""
    if text in KNOB:
        return KNOB[text]
    try:
        return float(text) / 100
    except ValueError as error:
        raise InvalidRequest(f"--cs is tps, balanced, cost or 0 to 100: got {text!r}") from error


def price_words(objective: str, per_token: float) -> str:
    """Return a price per token in words, in the unit in which people state it."""
    if objective in COSTS:
        return f"${per_token * PER_MILLION:.4g} a million tokens"
    return (
        f"{per_token * 1e3:.4g} ms a token"
        if objective == "latency"
        else f"{per_token:.4g} J a token"
    )


def blend(cost: Tariff, weight: float, reference: Effort) -> Tariff:
    """Combine speed and cost into one tariff.

    reference: effort of a token in the fastest setting; each price is relative to its value there
    """
    speed = SPEED.times((1 - weight) / max(SPEED.of(reference), 1e-12))
    return speed.plus(cost.times(weight / max(cost.of(reference), 1e-30))) if weight else speed


def _joules(watts: float | None, seconds: float, whose: str) -> Figure:
    if seconds == 0 or watts == 0:
        return Figure.measured(0.0, f"no time of the {whose}")
    return (
        Figure.unavailable(f"nobody has stated the watts of the {whose}")
        if watts is None
        else assumed_joules(watts, seconds)
    )
