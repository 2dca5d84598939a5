"""Dollars and joules of a token: worked examples by hand, and what becomes of figures that
nobody knows.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference.cost.accounting import OBJECTIVES, Rates, assumed_joules, hire_usd
from inference.cost.effort import Effort
from inference.cost.objective import Terms
from inference.cost.quantity import Figure, Quality, at_least, total

UNKNOWN = Figure.unavailable("no counter")
JOULES = Figure.measured(100.0, "counter")
RENTED = Rates(
    target_usd_per_hour=1.34375,
    usd_per_kwh=0.36,
    usd_per_gb_to_target=0.0,
    usd_per_gb_from_target=0.09,
)
TERMS = Terms(RENTED, target_watts=80.0)
TOKENS, EFFORT = 200, Effort(wall=5.0, drafting=1.0, bytes_up=20_000, bytes_down=4_000)


def test_trn1_at_40_tokens_a_second_costs_9_3316_dollars_a_million() -> None:
    rates = Rates(target_usd_per_hour=1.34375, usd_per_kwh=0.2, usd_per_gb_to_target=0.0)
    cost = Terms(rates).bill(40, Effort(wall=1.0, bytes_up=20_000)).total_cost
    assert round(cost.times(1e6).value or 0, 4) == 9.3316


def test_the_parts_of_a_bill_by_hand() -> None:
    made = TERMS.bill(TOKENS, EFFORT, JOULES)
    million = {name: part.times(1e6).value for name, part in vars(made).items()}
    assert million["latency"] == pytest.approx(25_000.0)  # 5 s for 200 tokens
    assert million["api_cost"] == pytest.approx(1.34375 * 25_000 / 3600)
    assert million["draft_electricity_cost"] == pytest.approx(0.05)  # 0.5 J a token at $1e-7 a J
    assert million["upload_cost"] == 0.0
    assert million["download_cost"] == pytest.approx(20 * 0.09e-3)  # 20 bytes a token
    assert made.total_cost.times(1e6).value == pytest.approx(9.331597 + 0.05 + 0.0018)
    assert (made.draft_energy.value, made.target_energy.value, made.energy_total.value) == (
        0.5,
        2.0,
        2.5,
    )
    assert made.total_cost.quality is Quality.MEASURED
    assert made.energy_total.quality is Quality.ESTIMATED  # the target's watts are stated


def test_a_shared_target_costs_its_share_of_hours_and_joules() -> None:
    whole, shared = (
        terms.bill(TOKENS, EFFORT, JOULES) for terms in (TERMS, replace(TERMS, target_share=0.25))
    )
    assert shared.api_cost.value == pytest.approx((whole.api_cost.value or 0) / 4)
    assert shared.target_energy.value == pytest.approx((whole.target_energy.value or 0) / 4)
    assert (shared.draft_energy, shared.latency) == (whole.draft_energy, whole.latency)


def test_an_unknown_energy_makes_the_total_unavailable_and_is_never_nothing() -> None:
    made = TERMS.bill(TOKENS, EFFORT, UNKNOWN)
    for name in ("total_cost", "energy_total", "draft_energy"):
        assert OBJECTIVES[name](made) == UNKNOWN
    assert OBJECTIVES["api_cost"](made).quality is Quality.MEASURED
    assert made.known_cost.quality is Quality.ESTIMATED
    known = "at least, from wall clock; counted bytes; not counted: no counter"
    assert made.known_cost.source == known
    assert made.known_cost.times(1e6).value == pytest.approx(9.331597 + 0.0018)


def test_a_price_that_nobody_stated_is_not_zero() -> None:
    terms = Terms(Rates(target_usd_per_hour=1.0))
    made = terms.bill(TOKENS, EFFORT, JOULES)
    assert "no price of electricity" in made.total_cost.source
    assert "no price of traffic from the target" in made.total_cost.source
    assert terms.bill(TOKENS, Effort(5.0, 1.0, bytes_down=4_000)).upload_cost.value == 0.0


def test_an_estimate_makes_an_estimate() -> None:
    stated = Terms(RENTED, draft_watts=20.0).bill(TOKENS, EFFORT)
    assert stated.total_cost.quality is Quality.ESTIMATED
    assert stated.draft_energy.value == pytest.approx(20.0 / TOKENS)  # a second of drafting
    assumed = assumed_joules(watts=20.0, seconds=5.0)
    assert (assumed.value, assumed.quality, assumed.source) == (
        100.0,
        Quality.ESTIMATED,
        "20 W assumed",
    )


def test_every_objective_has_a_figure() -> None:
    made = TERMS.bill(TOKENS, EFFORT, JOULES)
    assert set(OBJECTIVES) == {
        "total_cost",
        "api_cost",
        "energy_total",
        "draft_energy",
        "target_energy",
        "latency",
    }
    assert all(objective(made).value is not None for objective in OBJECTIVES.values())


def test_an_hour_is_hired_by_the_second() -> None:
    assert hire_usd(90.0, 36.0) == pytest.approx(0.9)


@pytest.mark.parametrize("tokens", [0, -1.0, float("inf")])
def test_a_bill_is_by_the_token(tokens: float) -> None:
    with pytest.raises(ValueError, match="by the token"):
        TERMS.bill(tokens, EFFORT)


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_a_share_that_cannot_be_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="target_share"):
        Terms(RENTED, target_share=share)


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="usd_per_kwh"):
        Rates(target_usd_per_hour=1.0, usd_per_kwh=-0.1)
    with pytest.raises(ValueError, match="above 0 W"):
        assumed_joules(0.0, 1.0)
    with pytest.raises(ValueError, match="has a value unless"):
        Figure(0.0, Quality.UNAVAILABLE, "unknown as zero")
    with pytest.raises(ValueError, match="finite"):
        Figure.measured(float("nan"), "counter")


def test_sums_are_as_good_as_their_worst_part() -> None:
    one, estimate = Figure.measured(1.0, "counter"), Figure.estimated(2.0, "model")
    assert total([one, estimate]) == Figure.estimated(3.0, "counter; model")
    assert total([one, UNKNOWN]) == UNKNOWN
    assert total([]).value is None
    assert at_least([one, UNKNOWN]) == Figure(
        1.0,
        Quality.ESTIMATED,
        "at least, from counter; not counted: no counter",
        lower_bound=True,
    )
    assert at_least([one, estimate]) == total([one, estimate])
    assert at_least([UNKNOWN]) == UNKNOWN
    assert UNKNOWN.record() == {
        "value": None,
        "quality": "unavailable",
        "source": "no counter",
        "lower_bound": False,
    }
