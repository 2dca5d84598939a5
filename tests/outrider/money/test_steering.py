"""Prices follow what the user states: they weigh cost as asked, and move until a limit is kept."""

from __future__ import annotations

import pytest

from inference.cost.effort import SPEED, Effort, Tariff
from inference.cost.objective import Wish
from outrider.money.steering import EVERY, SteeredPrices

COST = Tariff(wall=1e-3, drafting=1e-2)
FAST, SLOW = Effort(0.01, 0.02), Effort(0.04, 0.001)


def steered(wish: Wish) -> SteeredPrices:
    return SteeredPrices(wish=wish, cost=COST, expected=FAST)


def make(prices: SteeredPrices, effort: Effort, tokens: int = 10 * EVERY) -> SteeredPrices:
    for _ in range(tokens):
        prices.committed(1, effort)
    return prices


def relative(tariff: Tariff) -> float:
    """What drafting costs against waiting."""
    return tariff.drafting / tariff.wall


def test_no_weight_is_speed_alone_and_full_weight_cost_alone() -> None:
    assert relative(steered(Wish()).tariff) == relative(SPEED)
    assert relative(steered(Wish(weight=1.0)).tariff) == pytest.approx(relative(COST))


def test_drafting_gets_dearer_with_the_weight_of_cost() -> None:
    shares = [relative(make(steered(Wish(weight=one)), FAST).tariff) for one in (0.0, 0.3, 0.7)]
    assert shares == sorted(shares)
    assert shares[0] < shares[1] < shares[2]


def test_a_weight_without_a_limit_stays() -> None:
    assert make(steered(Wish(weight=0.3)), SLOW).weight == 0.3


@pytest.mark.parametrize(
    ("wish", "spare", "short"),
    [
        (Wish(min_tps=50.0), FAST, SLOW),  # 100 and 25 tokens a second
        (Wish(max_per_token=1e-4), FAST, SLOW),  # 2.1e-4 and 5e-5 of cost
    ],
)
def test_a_limit_moves_the_weight_to_cost_while_there_is_room_and_back(
    wish: Wish, spare: Effort, short: Effort
) -> None:
    prices = make(steered(wish), spare)
    towards_cost = prices.weight
    assert towards_cost > 0
    assert make(prices, short, 40 * EVERY).weight < towards_cost


def test_a_limit_that_cannot_be_kept_leaves_the_weight_at_its_bound() -> None:
    assert make(steered(Wish(min_tps=1e6)), SLOW).weight == 0.0
    assert make(steered(Wish(max_per_token=1e-9)), SLOW, 100 * EVERY).weight == 1.0
