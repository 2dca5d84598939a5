"""A forecast is the closed forms, taken over every tree that is looked at."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from inference.cost import expected_chain_tokens
from inference.forecast import (
    BETS,
    DISTRIBUTED,
    FUSED,
    NODE_BYTES,
    ROUND_BYTES,
    TARGET_ONLY,
    VERDICT_BYTES,
    Forecast,
    Shape,
    Situation,
    forecasts,
    shapes,
)
from inference.objective import Effort
from inference.planner import Round, fused_time, proactive_time, synchronous_time
from inference.policy import best_static_tree

RATES = (0.7, 0.12, 0.05, 0.03, 0.02)
STEEP = (0.956, 0.016, 0.006, 0.006, 0.006, 0.006)
"""Each of the small ones would be rounded up."""

SITUATION = Situation(
    rates=RATES,
    call=lambda width: 0.01 + 0.0005 * width,
    verify=lambda nodes: 0.03 + 0.0001 * nodes,
    exchange=lambda size: 0.02 + 1e-6 * size,
    queue=0.004,
    call_there=lambda width: 0.005,
    room_there=10_000,
    most_nodes=63,
)


def of(architecture: str, now: Situation = SITUATION) -> list[Forecast]:
    return [one for one in forecasts(now) if one.architecture == architecture]


def chain(now: Situation, length: int) -> Forecast:
    """The synchronous chain of this length: `now` has rates of one rank, so that every tree is one."""
    return next(one for one in of(DISTRIBUTED, now) if one.nodes == length and one.bets == 0)


@pytest.mark.parametrize("length", [1, 2, 4, 8, 16])
def test_a_chain_takes_the_time_of_the_closed_form(length: int) -> None:
    now = replace(SITUATION, rates=(0.7,))
    made, found = Round(length * now.call(1), now.verify(length + 1), expected_chain_tokens(length, 0.7)), chain(now, length)
    size = int(ROUND_BYTES + NODE_BYTES * length + VERDICT_BYTES)
    assert found.effort.wall == pytest.approx(synchronous_time(made, now.exchange(size) + now.queue))
    assert found.tokens == pytest.approx(made.tokens)
    assert found.effort.drafting == pytest.approx(made.drafting / made.tokens)
    assert found.effort.bytes_up == pytest.approx((ROUND_BYTES + NODE_BYTES * length) / made.tokens)
    assert found.depth == length


def test_the_target_alone_is_a_forward_and_the_queue_and_comes_first() -> None:
    assert forecasts(SITUATION)[0] == Forecast(TARGET_ONLY, 0, 0, 0, 1.0, Effort(0.03 + 0.0001 + 0.004, 0.0, 0.0, VERDICT_BYTES))
    assert len(of(TARGET_ONLY)) == 1


def test_the_draft_beside_the_target_pays_no_network() -> None:
    for one in of(FUSED):
        shape = next(shape for shape in shapes(RATES, 63) if (shape.nodes, shape.depth) == (one.nodes, one.depth))
        made = Round(shape.depth * 0.005, SITUATION.verify(one.nodes + 1), shape.tokens)
        assert one.effort.wall == pytest.approx(fused_time(made, SITUATION.queue))
        assert (one.effort.drafting, one.effort.bytes_up, one.bets) == (0.0, 0.0, 0)


def test_no_draft_there_and_no_room_there_mean_no_fused_forecast() -> None:
    assert not of(FUSED, replace(SITUATION, call_there=None))
    assert not of(FUSED, replace(SITUATION, room_there=1))
    assert max(one.nodes * one.depth + 1 for one in of(FUSED, replace(SITUATION, room_there=9))) == 9


@pytest.mark.parametrize("rates", [RATES, STEEP, (0.3,) * 3, (1.0,)])
def test_the_tokens_of_a_shape_are_one_and_the_values_of_its_nodes(rates: tuple[float, ...]) -> None:
    rounded = rates if rates != STEEP else (0.96, 0.02, 0.01, 0.01, 0.0, 0.0)
    for shape in shapes(rates, 63):
        edges = best_static_tree(tuple(rate for rate in rounded if rate), shape.nodes, shape.depth)
        paths = {0: 1.0}
        for edge in edges:
            paths[edge.node] = paths[edge.parent] * rounded[edge.rank]
        assert shape.tokens == pytest.approx(sum(paths.values()))
        assert shape.nodes == len(edges)
        assert len(shape.widths) == shape.depth
        assert shape.tokens <= 1 + shape.depth + 1e-9


@pytest.mark.parametrize("rates", [RATES, STEEP, (0.125,) * 8, (0.995, 0.005), (0.01,)])
def test_more_bets_are_hit_more_often_and_never_more_than_always(rates: tuple[float, ...]) -> None:
    for shape in shapes(rates, 63):
        hits = [shape.hit(bets) for bets in BETS]
        assert hits[0] == 0.0
        assert all(few <= many for few, many in pairwise(hits))
        assert hits[-1] <= 1 + 1e-9


def test_the_outcomes_of_a_round_are_all_that_it_can_come_to_where_every_rank_is_known() -> None:
    shape = next(shape for shape in shapes((0.6, 0.4), 3) if (shape.nodes, shape.depth) == (3, 2))
    assert shape.outcomes[-1] == pytest.approx(1.0)
    assert shape.outcomes == pytest.approx((0.24, 0.48, 0.696, 0.856, 1.0))  # .24, .24, .216, .16, .144 below .6, .4 and .36


def test_bets_take_the_time_between_waiting_and_always_hitting() -> None:
    now = replace(SITUATION, rates=(0.7,))
    waiting = chain(now, 2)
    made = Round(2 * now.call(1), now.verify(3), waiting.tokens)
    between = now.exchange(int(ROUND_BYTES + 2 * NODE_BYTES + VERDICT_BYTES)) + now.queue
    betting = [one for one in of(DISTRIBUTED, now) if one.nodes == 2 and one.bets]
    assert all(proactive_time(made, between, 1.0) - 1e-12 <= one.effort.wall <= waiting.effort.wall for one in betting)
    assert betting[0].effort.wall == pytest.approx(proactive_time(made, between, 0.7**3))  # the outcome after all of the chain


def test_without_bets_none_are_looked_at() -> None:
    assert {one.bets for one in of(DISTRIBUTED, replace(SITUATION, bets=False))} == {0}
    assert {one.bets for one in of(DISTRIBUTED)} == set(BETS)


@pytest.mark.parametrize("useless", [{"most_nodes": 0}, {"rates": (0.0,) * 8}, {"rates": (0.004, 0.0)}])
def test_where_no_tree_is_possible_a_root_alone_can_still_be_sent(useless: dict[str, object]) -> None:
    now = replace(SITUATION, **useless)  # type: ignore[arg-type]
    (alone,) = of(DISTRIBUTED, now)
    assert (alone.nodes, alone.tokens, alone.effort.drafting) == (0, 1.0, 0.0)
    assert alone.effort.wall == pytest.approx(now.exchange(int(ROUND_BYTES + VERDICT_BYTES)) + now.queue + now.verify(1))
    assert not of(FUSED, now)


def test_no_tree_is_larger_than_the_target_takes() -> None:
    assert max(shape.nodes for shape in shapes(RATES, 7)) == 7
    assert max(one.nodes for one in forecasts(replace(SITUATION, most_nodes=7))) == 7


def test_learning_a_little_makes_nothing_anew() -> None:
    assert shapes((0.701, 0.119), 31) is shapes((0.699, 0.121), 31)
    assert shapes((0.70, 0.12), 31) is not shapes((0.71, 0.12), 31)


def test_a_forecast_says_its_setting_in_words() -> None:
    effort = Effort(0.02)
    assert Forecast(TARGET_ONLY, 0, 0, 0, 1.0, effort).words == "target-only"
    assert Forecast(DISTRIBUTED, 8, 4, 16, 3.0, effort).words == "distributed, 8 nodes of depth 4, 16 bets"
    assert Forecast(FUSED, 8, 4, 0, 3.0, effort).words == "fused, 8 nodes of depth 4"
    assert Forecast(FUSED, 8, 4, 0, 3.0, effort).tokens_per_second == 50.0


def test_a_shape_without_outcomes_is_never_hit() -> None:
    assert Shape(0, 0, 1.0, (), ()).hit(8) == 0.0
