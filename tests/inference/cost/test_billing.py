"""Dollars and joules of a token by hand, and what becomes of figures that nobody knows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from inference.cost.billing import (
    OBJECTIVES,
    Billing,
    Figure,
    Quality,
    at_least,
    blend,
    hire_usd,
    total,
)
from inference.errors import InvalidRequest
from inference.planner.prices import SPEED, UnitPrices, Usage

UNKNOWN = Figure.unavailable("no counter")
JOULES = Figure.measured(100.0, "counter")
RENTED = Billing(1.34375, 0.36, 0.09)
TOKENS, USAGE = 200, Usage(wall=5.0, drafting=1.0, bytes_up=20_000, bytes_down=4_000)
PRICED = Billing(1.34375, 0.36, 0.09, draft_watts=20.0, target_watts=400.0)


def test_figures_by_hand() -> None:
    found = replace(RENTED, target_watts=80.0).figures(TOKENS, USAGE, JOULES)
    million = {name: figure.times(1e6).value for name, figure in found.items()}
    held = 1.34375 * 25_000 / 3600  # 5 s for 200 tokens
    electricity, traffic = 0.05, 120 * 0.09e-3  # 0.5 J at $1e-7 a J; 120 bytes a token
    assert million == pytest.approx(
        {
            "latency": 25_000.0,
            "api_cost": held,
            "total_cost": held + electricity + traffic,
            "known_cost": held + electricity + traffic,
            "draft_energy": 0.5e6,
            "target_energy": 2.0e6,
            "energy_total": 2.5e6,
        }
    )
    assert set(found) == {*OBJECTIVES, "known_cost"}
    assert found["total_cost"].quality is Quality.MEASURED
    assert found["energy_total"].quality is Quality.ESTIMATED  # the target's watts are stated
    stated = replace(RENTED, draft_watts=20.0).figures(TOKENS, USAGE)
    assert stated["total_cost"].quality is Quality.ESTIMATED
    assert stated["draft_energy"].value == pytest.approx(20.0 / TOKENS)  # a second of drafting
    assert stated["draft_energy"].source == "20 W assumed"
    trn1 = Billing(1.34375, 0.2, 0.0).figures(40, Usage(wall=1.0, bytes_up=20_000))
    assert round(trn1["total_cost"].times(1e6).value or 0, 4) == 9.3316
    assert hire_usd(90.0, 36.0) == pytest.approx(0.9)


def test_an_unknown_energy_makes_the_total_unavailable_and_is_never_nothing() -> None:
    found = RENTED.figures(TOKENS, USAGE, UNKNOWN)
    assert found["total_cost"] == found["draft_energy"] == UNKNOWN
    assert found["api_cost"].quality is Quality.MEASURED
    known = found["known_cost"]
    assert (known.quality, known.lower_bound) == (Quality.ESTIMATED, True)
    assert all(part in known.source for part in ("wall clock", "counted bytes", "no counter"))
    assert known.times(1e6).value == pytest.approx(9.331597 + 0.0108)


@pytest.mark.parametrize(
    ("make", "arguments", "shown"),
    [
        (RENTED.figures, (0, USAGE), "0"),
        (RENTED.figures, (-1.0, USAGE), "-1.0"),
        (RENTED.figures, (float("inf"), USAGE), "inf"),
        (Billing, (1.0, -0.1), "usd_per_kwh"),
        (Billing, (float("nan"),), "usd_per_hour"),
        (Billing, (1.0, None, float("inf")), "usd_per_gb"),
        (partial(Billing, draft_watts=-1.0), (), "draft_watts"),
        (Figure, (0.0, Quality.UNAVAILABLE, "unknown as zero"), "0.0"),
        (Figure.measured, (float("nan"), "counter"), "counter"),
    ],
)
def test_wrong_numbers_are_refused(make: Any, arguments: tuple[Any, ...], shown: str) -> None:
    with pytest.raises(ValueError, match=shown):
        make(*arguments)


def test_sums_are_as_good_as_their_worst_part() -> None:
    one, estimate = Figure.measured(1.0, "counter"), Figure.estimated(2.0, "model")
    assert total([one, estimate]) == Figure.estimated(3.0, "counter; model")
    assert total([one, UNKNOWN]) == UNKNOWN
    assert total([]).value is None
    least = at_least([one, UNKNOWN])
    assert (least.value, least.quality, least.lower_bound) == (1.0, Quality.ESTIMATED, True)
    assert UNKNOWN.source in least.source
    assert at_least([one, estimate]) == total([one, estimate])
    assert at_least([UNKNOWN]) == UNKNOWN
    plain = {"value": None, "quality": "unavailable", "source": "no counter", "lower_bound": False}
    assert UNKNOWN.record() == plain


def test_unit_prices_by_hand_are_those_of_the_figures() -> None:
    billing = Billing(3.6, 0.36, 0.1, draft_watts=10.0)
    assert billing.unit_prices("total_cost") == pytest.approx((1e-3, 1e-6, 1e-10, 1e-10))
    assert billing.unit_prices("api_cost") == pytest.approx((1e-3, 0.0, 0.0, 0.0))
    assert billing.unit_prices("draft_energy") == pytest.approx((0.0, 10.0, 0.0, 0.0))
    assert billing.unit_prices("latency") == SPEED
    free = Billing(3.6, 0.0, 0.0, draft_watts=0.0, target_watts=0.0)  # 0 that is stated
    assert free.unit_prices("total_cost") == pytest.approx((1e-3, 0.0, 0.0, 0.0))
    assert free.unit_prices("energy_total") == UnitPrices(0.0)
    usage = Usage(3.0, 1.0, 1000, 2000)
    for objective in OBJECTIVES:
        figure = PRICED.figures(TOKENS, usage)[objective].times(TOKENS)
        assert PRICED.unit_prices(objective).of(usage) == pytest.approx(figure.value, rel=1e-9)
    assert PRICED.known_prices == pytest.approx(PRICED.unit_prices("total_cost"))
    unstated = replace(PRICED, usd_per_gb=None)  # what is known is a lower bound
    assert 0 < unstated.known_prices.of(usage) < PRICED.known_prices.of(usage)
    assert Billing(3.6).known_prices == pytest.approx((1e-3, 0.0, 0.0, 0.0))


def test_what_nobody_has_stated_is_named_and_never_nothing() -> None:
    for unstated, objective, missing in (
        ("usd_per_hour", "api_cost", "target"),
        ("usd_per_kwh", "total_cost", "electricity"),
        ("usd_per_gb", "total_cost", "traffic"),
        ("draft_watts", "total_cost", "watts .*draft"),
        ("draft_watts", "draft_energy", "watts .*draft"),
        ("target_watts", "target_energy", "watts .*target"),
        ("draft_watts target_watts", "energy_total", "watts .*target .*draft"),
    ):
        nothing: dict[str, Any] = dict.fromkeys(unstated.split())
        billing = replace(PRICED, **nothing)
        with pytest.raises(InvalidRequest, match=f"{objective} .*{missing}"):
            billing.unit_prices(objective)
        assert billing.figures(1.0, Usage(1.0, 1.0, 100, 100))[objective].value is None


def test_a_blend_weighs_each_relative_to_a_token_of_the_target_alone() -> None:
    alone, cost = Usage(0.04, 0.0, 0.0, 30.0), UnitPrices(2e-3, 1e-4, 1e-9, 2e-9)
    double_time = alone._replace(wall=0.08)
    dearer = cost.of(double_time) / cost.of(alone)
    for weight, expected in ((0.0, 2.0), (0.5, (2.0 + dearer) / 2), (1.0, dearer)):
        assert blend(cost, weight, alone).of(alone) == pytest.approx(1.0)
        assert blend(cost, weight, alone).of(double_time) == pytest.approx(expected)
    drafting = blend(UnitPrices(0.0, 20.0), 1.0, Usage(0.04))  # which the target gets for nothing
    assert drafting.of(Usage(0.04)) == 0.0
    assert 0 < drafting.of(Usage(0.02, 0.01)) < float("inf")
    usage = Usage(1.0, 2.0, 3.0, 4.0)
    assert usage.plus(usage) == usage.times(2.0) == Usage(2.0, 4.0, 6.0, 8.0)
    assert UnitPrices(1.0, 10.0, 100.0, 1000.0).of(usage) == 4321.0
