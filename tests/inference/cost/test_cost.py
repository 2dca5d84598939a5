"""Dollars and joules of a token: worked examples by hand, and what becomes of figures that
nobody knows.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference.cost.accounting import (
    OBJECTIVES,
    Rates,
    Usage,
    assumed_joules,
    bill,
    chain_cost_per_token,
    expected_chain_tokens,
    hire_usd,
    launch_usd,
)
from inference.cost.quantity import Figure, Quality, at_least, total

UNKNOWN = Figure.unavailable("no counter")


def seconds(value: float) -> Figure:
    return Figure.measured(value, "clock")


def joules(value: float) -> Figure:
    return Figure.measured(value, "counter")


RENTED = Rates(
    target_usd_per_hour=1.34375,
    usd_per_kwh=0.36,
    usd_per_gb_to_target=0.0,
    usd_per_gb_from_target=0.09,
)
USAGE = Usage(
    tokens=200,
    wall_seconds=seconds(5.0),
    busy_seconds=seconds(2.0),
    target_share=1.0,
    bytes_to_target=20_000,
    bytes_from_target=4_000,
    draft_joules=joules(100.0),
    target_joules=joules(400.0),
)


def test_trn1_at_40_tokens_a_second_costs_9_3316_dollars_a_million() -> None:
    alone = replace(
        USAGE, tokens=40, wall_seconds=seconds(1.0), bytes_from_target=0, draft_joules=joules(0.0)
    )
    cost = bill(
        alone, Rates(target_usd_per_hour=1.34375, usd_per_kwh=0.2, usd_per_gb_to_target=0.0)
    ).total_cost
    assert round(cost.times(1e6).value or 0, 4) == 9.3316


def test_the_parts_of_a_bill_by_hand() -> None:
    made = bill(USAGE, RENTED)
    million = {name: part.times(1e6).value for name, part in vars(made).items() if part is not None}
    assert million["latency"] == pytest.approx(25_000.0)  # 5 s for 200 tokens
    assert million["api_cost"] == pytest.approx(1.34375 * 25_000 / 3600)
    assert million["idle_cost"] == pytest.approx(0.6 * 1.34375 * 25_000 / 3600)  # 3 of the 5 s
    assert million["draft_electricity_cost"] == pytest.approx(0.05)  # 0.5 J a token at $1e-7 a J
    assert million["upload_cost"] == 0.0
    assert million["download_cost"] == pytest.approx(20 * 0.09e-3)  # 20 bytes a token
    assert made.target_electricity_cost is None
    assert made.total_cost.times(1e6).value == pytest.approx(9.331597 + 0.05 + 0.0018)
    assert (made.draft_energy.value, made.target_energy.value, made.energy_total.value) == (
        0.5,
        2.0,
        2.5,
    )
    assert made.total_cost.quality is Quality.MEASURED


def test_waiting_is_paid_like_computing() -> None:
    busy, waiting = (
        bill(replace(USAGE, busy_seconds=seconds(used)), RENTED) for used in (5.0, 0.5)
    )
    assert busy.api_cost == waiting.api_cost
    assert busy.idle_cost.value == 0.0


def test_a_shared_target_costs_its_share_of_hours_and_joules() -> None:
    whole, shared = bill(USAGE, RENTED), bill(replace(USAGE, target_share=0.25), RENTED)
    assert shared.api_cost.value == pytest.approx((whole.api_cost.value or 0) / 4)
    assert shared.target_energy.value == pytest.approx((whole.target_energy.value or 0) / 4)
    assert (shared.draft_energy, shared.latency) == (whole.draft_energy, whole.latency)


def test_own_hardware_pays_electricity_and_rented_hours_include_it() -> None:
    own = bill(
        USAGE,
        Rates(
            target_usd_per_hour=0.0,
            usd_per_kwh=0.36,
            pays_target_electricity=True,
            usd_per_gb_to_target=0,
            usd_per_gb_from_target=0,
        ),
    )
    assert own.target_electricity_cost is not None
    assert own.total_cost.times(1e6).value == pytest.approx(0.05 + 0.2)  # 0.5 J and 2 J a token


def test_what_stands_beside_the_target_is_paid_with_it() -> None:
    beside = bill(USAGE, replace(RENTED, standing_usd_per_hour=1.34375))
    assert beside.api_cost.value == pytest.approx(2 * (bill(USAGE, RENTED).api_cost.value or 0))


def test_an_unknown_energy_makes_the_total_unavailable_and_is_never_nothing() -> None:
    made = bill(replace(USAGE, draft_joules=UNKNOWN), RENTED)
    for name in ("total_cost", "energy_total", "draft_energy"):
        assert OBJECTIVES[name](made) == UNKNOWN
    assert OBJECTIVES["api_cost"](made).quality is Quality.MEASURED
    assert made.known_cost.quality is Quality.ESTIMATED
    assert made.known_cost.source == "at least, from clock; counted bytes; not counted: no counter"
    assert made.known_cost.times(1e6).value == pytest.approx(9.331597 + 0.0018)


def test_a_price_that_nobody_stated_is_not_zero() -> None:
    made = bill(USAGE, Rates(target_usd_per_hour=1.0))
    assert "no price of electricity" in made.total_cost.source
    assert "no price of traffic from the target" in made.total_cost.source
    assert (
        bill(replace(USAGE, bytes_to_target=0), Rates(target_usd_per_hour=1.0)).upload_cost.value
        == 0.0
    )


def test_an_estimate_makes_an_estimate() -> None:
    emulated = replace(USAGE, wall_seconds=Figure.estimated(5.0, "emulated target"))
    assert bill(emulated, RENTED).total_cost.quality is Quality.ESTIMATED
    assumed = assumed_joules(watts=20.0, seconds=5.0)
    assert (assumed.value, assumed.quality, assumed.source) == (
        100.0,
        Quality.ESTIMATED,
        "20 W assumed",
    )


def test_every_objective_has_a_figure() -> None:
    made = bill(USAGE, RENTED)
    assert set(OBJECTIVES) == {
        "total_cost",
        "api_cost",
        "energy_total",
        "draft_energy",
        "target_energy",
        "latency",
    }
    assert all(objective(made).value is not None for objective in OBJECTIVES.values())


def test_clocks_that_disagree_leave_no_negative_idle_time() -> None:
    assert replace(USAGE, busy_seconds=seconds(5.01)).idle_seconds.value == 0.0
    assert replace(USAGE, busy_seconds=UNKNOWN).idle_seconds == UNKNOWN


def test_the_first_minute_of_a_launch_is_paid_in_full() -> None:
    assert launch_usd(10.0, 36.0) == pytest.approx(0.6)
    assert launch_usd(90.0, 36.0) == hire_usd(90.0, 36.0) == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("acceptance", "lengths"), [(0.7, [2, 3, 3, 4, 5, 7]), (0.9, [4, 6, 8, 10, 13, 16])]
)
def test_the_best_chain_grows_slowly_with_the_delay(acceptance: float, lengths: list[int]) -> None:
    """Against reference/decoding.md 4.2: 10 ms a drafted token, 30 + 0.5 ms a token to verify,
    round trips of 0 to 320 ms.
    """
    best = [
        min(
            range(1, 40),
            key=lambda length: chain_cost_per_token(
                length, acceptance, draft=10.0, verify=0.5, fixed=30.0, one_way=delay / 2
            ),
        )
        for delay in (0, 20, 40, 80, 160, 320)
    ]
    assert best == lengths


def test_a_chain_brings_the_targets_own_token_too() -> None:
    assert expected_chain_tokens(0, 0.9) == 1.0
    assert expected_chain_tokens(4, 1.0) == 5.0
    assert expected_chain_tokens(3, 0.5) == 1.875
    assert chain_cost_per_token(
        3, 0.5, draft=1.0, verify=0.5, fixed=2.0, one_way=4.0
    ) == pytest.approx(14.5 / 1.875)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"tokens": 0}, "by the token"),
        ({"target_share": 0.0}, "target_share"),
        ({"target_share": 1.5}, "target_share"),
        ({"bytes_to_target": -1}, "bytes"),
    ],
)
def test_usage_that_cannot_be_is_refused(wrong: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        replace(USAGE, **wrong)  # type: ignore[arg-type]


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="usd_per_kwh"):
        Rates(target_usd_per_hour=1.0, usd_per_kwh=-0.1)
    with pytest.raises(ValueError, match="above 0 W"):
        assumed_joules(0.0, 1.0)
    with pytest.raises(ValueError, match="acceptance"):
        expected_chain_tokens(2, 1.1)
    with pytest.raises(ValueError, match="has a value unless"):
        Figure(0.0, Quality.UNAVAILABLE, "unknown as zero")
    with pytest.raises(ValueError, match="finite"):
        Figure.measured(float("nan"), "counter")


def test_sums_are_as_good_as_their_worst_part() -> None:
    estimate = Figure.estimated(2.0, "model")
    assert total([joules(1.0), estimate]) == Figure.estimated(3.0, "counter; model")
    assert total([joules(1.0), UNKNOWN]) == UNKNOWN
    assert total([]).value is None
    assert at_least([joules(1.0), UNKNOWN]) == Figure(
        1.0,
        Quality.ESTIMATED,
        "at least, from counter; not counted: no counter",
        lower_bound=True,
    )
    assert at_least([joules(1.0), estimate]) == total([joules(1.0), estimate])
    assert at_least([UNKNOWN]) == UNKNOWN
    assert UNKNOWN.record() == {
        "value": None,
        "quality": "unavailable",
        "source": "no counter",
        "lower_bound": False,
    }
