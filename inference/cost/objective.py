"""A user's goal as prices of the seconds and bytes that tokens take. Pure.

Every objective of inference/cost/accounting.py is linear in the seconds held, the seconds drafted
and the bytes sent. So a Tariff of four prices says the same. Its prices are read off the bills of
one unit each.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.cost.accounting import COSTS, OBJECTIVES, Bill, Rates, assumed_joules, hire_usd
from inference.cost.effort import SPEED, Effort, Tariff
from inference.cost.quantity import Figure
from inference.errors import InvalidRequest

KNOB = {"tps": 0.0, "balanced": 0.5, "cost": 1.0}
"""Names of a weight: how much cost counts against speed."""

PER_MILLION = 1e6
"""Prices of tokens are stated per so many."""


UNITS = tuple(Effort(*(float(index == part) for index in range(4))) for part in range(4))
"""One unit of each part of an Effort."""


@dataclass(frozen=True)
class Terms:
    """What bills are made of, besides the Effort."""

    rates: Rates
    target_share: float = 1.0  # of the target that is charged
    draft_watts: float | None = None  # of the draft's machine while it drafts; None: not known
    target_watts: float | None = None  # of the whole target machine; None: not known

    def __post_init__(self) -> None:
        if not 0 < self.target_share <= 1:
            raise ValueError(
                f"target_share is above 0, and 1 is the whole target: got {self.target_share}"
            )

    def bill(self, tokens: float, effort: Effort, draft_joules: Figure | None = None) -> Bill:
        """Return what each of these tokens costs.

        tokens: an expected number in a forecast
        draft_joules: as measured; by default the stated watts count
        """
        if not 0 < tokens < float("inf"):
            raise ValueError(f"cost is counted by the token, and there are {tokens}")
        each, rates = effort.times(1 / tokens), self.rates
        wall = Figure.measured(each.wall, "wall clock")
        drafting = draft_joules or _joules(self.draft_watts, effort.drafting, "draft")
        draft_energy = drafting.times(1 / tokens)
        target_energy = _joules(self.target_watts, effort.wall, "target")
        return Bill(
            latency=wall,
            api_cost=wall.times(hire_usd(self.target_share, rates.target_usd_per_hour)),
            draft_electricity_cost=rates.electricity(draft_energy),
            upload_cost=rates.upload(each.bytes_up),
            download_cost=rates.download(each.bytes_down),
            draft_energy=draft_energy,
            target_energy=target_energy.times(self.target_share / tokens),
        )

    def price(self, objective: str, tokens: float, effort: Effort) -> Figure:
        """Return the objective's value per token, in US dollars, joules or seconds."""
        return OBJECTIVES[objective](self.bill(tokens, effort))

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
        return Tariff(*(self.bill(1.0, unit).known_cost.value or 0.0 for unit in UNITS))


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
    if objective == "latency":
        return f"{per_token * 1e3:.4g} ms a token"
    return f"{per_token:.4g} J a token"


def blend(cost: Tariff, weight: float, reference: Effort) -> Tariff:
    """Combine speed and cost into one tariff.

    reference: effort of a token in the fastest setting; each price is relative to its value there
    """
    speed = SPEED.times((1 - weight) / max(SPEED.of(reference), 1e-12))
    return speed.plus(cost.times(weight / max(cost.of(reference), 1e-30))) if weight else speed


def _joules(watts: float | None, seconds: float, whose: str) -> Figure:
    if seconds == 0 or watts == 0:
        return Figure.measured(0.0, f"no time of the {whose}")
    if watts is None:
        return Figure.unavailable(f"nobody has stated the watts of the {whose}")
    return assumed_joules(watts, seconds)
