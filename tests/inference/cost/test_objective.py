"""A Tariff says what the bill says, and a wish that cannot be counted or contradicts itself is
refused in words.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from inference.cost.accounting import OBJECTIVES, Rates
from inference.cost.effort import SPEED, Effort, Tariff
from inference.cost.objective import Terms, Wish, blend, read_knob
from inference.errors import InvalidRequest

RENTED = Rates(
    1.34375,
    usd_per_kwh=0.36,
    usd_per_gb_to_target=0.02,
    usd_per_gb_from_target=0.09,
)
TERMS = {
    "shared": Terms(RENTED, target_share=0.25, draft_watts=20.0, target_watts=400.0),
    "whole": Terms(RENTED, draft_watts=20.0, target_watts=400.0),
}


def random_effort(random: Random) -> Effort:
    """At least a byte and a millisecond of each part."""
    return Effort(
        random.uniform(1e-3, 9),
        random.uniform(1e-3, 9),
        random.randint(1, 10**6),
        random.randint(1, 10**6),
    )


def billed(terms: Terms, objective: str, tokens: float, effort: Effort) -> float:
    """By hand: US dollars, joules or seconds of a token."""
    rates, share = terms.rates, terms.target_share
    draft, target = (terms.draft_watts or 0) * effort.drafting, (terms.target_watts or 0) * share
    held = effort.wall * share * rates.target_usd_per_hour / 3600
    traffic = 0.02e-9 * effort.bytes_up + 0.09e-9 * effort.bytes_down
    values = {
        "total_cost": held + draft * 0.36 / 3.6e6 + traffic,
        "api_cost": held,
        "energy_total": draft + target * effort.wall,
        "draft_energy": draft,
        "target_energy": target * effort.wall,
        "latency": effort.wall,
    }
    return values[objective] / tokens


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_a_tariff_says_what_the_bill_says(terms: Terms, objective: str) -> None:
    random, tariff = Random(7), terms.tariff(objective)
    for _ in range(50):
        tokens, effort = random.randint(1, 500), random_effort(random)
        assert tariff.of(effort) / tokens == pytest.approx(
            billed(terms, objective, tokens, effort), rel=1e-9
        )
        assert terms.price(objective, tokens, effort).value == pytest.approx(
            tariff.of(effort) / tokens, rel=1e-9
        )


def test_a_tariff_by_hand() -> None:
    terms = Terms(
        Rates(3.6, usd_per_kwh=0.36, usd_per_gb_to_target=0.0, usd_per_gb_from_target=0.1),
        draft_watts=10.0,
    )
    assert terms.tariff("total_cost") == pytest.approx((1e-3, 1e-6, 0.0, 1e-10))
    assert terms.tariff("api_cost") == pytest.approx((1e-3, 0.0, 0.0, 0.0))
    assert terms.tariff("draft_energy") == pytest.approx((0.0, 10.0, 0.0, 0.0))
    assert terms.tariff("latency") == SPEED


@pytest.mark.parametrize(
    ("terms", "objective", "missing"),
    [
        (
            Terms(replace(RENTED, usd_per_kwh=None), draft_watts=20.0),
            "total_cost",
            "no price of electricity",
        ),
        (
            Terms(replace(RENTED, usd_per_gb_to_target=None), draft_watts=20.0),
            "total_cost",
            "no price of traffic to the target",
        ),
        (
            Terms(replace(RENTED, usd_per_gb_from_target=None), draft_watts=20.0),
            "total_cost",
            "no price of traffic from the target",
        ),
        (Terms(RENTED), "total_cost", "watts of the draft"),
        (Terms(RENTED, target_watts=400.0), "draft_energy", "watts of the draft"),
        (Terms(RENTED, draft_watts=20.0), "target_energy", "watts of the target"),
    ],
)
def test_what_nobody_has_stated_is_named_and_never_nothing(
    terms: Terms, objective: str, missing: str
) -> None:
    with pytest.raises(InvalidRequest, match=missing):
        terms.tariff(objective)
    assert terms.price(objective, 1.0, Effort(1.0, 1.0, 100, 100)).value is None


def test_everything_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(
        InvalidRequest, match=r"watts of the target; .*watts of the draft"
    ) as refused:
        Terms(RENTED).tariff("energy_total")
    assert "energy_total" in str(refused.value)


def test_zero_that_is_stated_counts_as_nothing() -> None:
    terms = Terms(
        Rates(3.6, usd_per_kwh=0.0, usd_per_gb_to_target=0.0, usd_per_gb_from_target=0.0),
        draft_watts=0.0,
        target_watts=0.0,
    )
    assert terms.tariff("total_cost") == pytest.approx((1e-3, 0.0, 0.0, 0.0))
    assert terms.tariff("energy_total") == Tariff(0.0)


def test_known_costs_are_a_lower_bound_of_the_total() -> None:
    effort = Effort(3.0, 1.0, 1000, 2000)
    unstated = Terms(
        replace(RENTED, usd_per_gb_from_target=None),
        target_share=0.25,
        draft_watts=20.0,
        target_watts=400.0,
    )
    whole = TERMS["shared"]
    assert whole.known_costs() == pytest.approx(whole.tariff("total_cost"))
    assert 0 < unstated.known_costs().of(effort) < whole.known_costs().of(effort)
    assert Terms(Rates(3.6)).known_costs() == pytest.approx((1e-3, 0.0, 0.0, 0.0))


def test_a_blend_weighs_each_relative_to_a_token_of_the_target_alone() -> None:
    alone, cost = Effort(0.04, 0.0, 0.0, 30.0), Tariff(2e-3, 1e-4, 1e-9, 2e-9)
    for weight in (0.0, 0.25, 0.5, 1.0):
        assert blend(cost, weight, alone).of(alone) == pytest.approx(1.0)
    double_time = alone._replace(wall=0.08)
    assert blend(cost, 0.0, alone).of(double_time) == pytest.approx(2.0)
    assert blend(cost, 1.0, alone).of(double_time) == pytest.approx(
        cost.of(double_time) / cost.of(alone)
    )
    assert blend(cost, 0.5, alone).of(double_time) == pytest.approx(
        (2.0 + cost.of(double_time) / cost.of(alone)) / 2
    )


def test_what_the_target_alone_gets_for_nothing_makes_no_infinite_price() -> None:
    drafting = blend(Tariff(0.0, 20.0), 1.0, Effort(0.04))
    assert drafting.of(Effort(0.04)) == 0.0
    assert 0 < drafting.of(Effort(0.02, 0.01)) < float("inf")


@pytest.mark.parametrize(
    ("text", "weight"),
    [("tps", 0.0), ("balanced", 0.5), ("cost", 1.0), ("0", 0.0), ("100", 1.0), ("37.5", 0.375)],
)
def test_the_knob_names_a_weight(text: str, weight: float) -> None:
    assert Wish(weight=read_knob(text)).weight == weight


@pytest.mark.parametrize("text", ["", "speed", "-1", "100.5", "nan", "inf", "50%"])
def test_a_knob_beyond_its_range_is_refused_by_its_flag(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--cs is tps, balanced, cost or 0 to 100"):
        Wish(weight=read_knob(text))


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_is_above_nothing_and_finite(limit: float) -> None:
    with pytest.raises(InvalidRequest, match="a limit is above 0"):
        Wish(min_tps=limit)
    with pytest.raises(InvalidRequest, match="a limit is above 0"):
        Wish(max_per_token=limit)


def test_a_wish_is_one_objective_and_one_limit() -> None:
    with pytest.raises(InvalidRequest, match="'comfort'"):
        Wish("comfort")
    with pytest.raises(InvalidRequest, match="one limit"):
        Wish(min_tps=10.0, max_per_token=1e-6)
    assert Wish().speed_alone
    assert not any(
        wish.speed_alone for wish in (Wish(weight=0.01), Wish(min_tps=1.0), Wish(max_per_token=1.0))
    )


def test_efforts_add_up_and_scale() -> None:
    effort = Effort(1.0, 2.0, 3.0, 4.0)
    assert effort.plus(effort) == effort.times(2.0) == Effort(2.0, 4.0, 6.0, 8.0)
    assert Tariff(1.0, 10.0, 100.0, 1000.0).of(effort) == 4321.0
