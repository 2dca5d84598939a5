"""A forecast is the closed forms, taken over every tree that the text of late would have had."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inference.cost import expected_chain_tokens
from inference.forecast import (
    DISTRIBUTED,
    FUSED,
    NODE_BYTES,
    ROUND_BYTES,
    TARGET_ONLY,
    VERDICT_BYTES,
    Forecast,
    Situation,
    Tree,
    forecasts,
    trees,
)
from inference.hindsight import DEPTHS, FloatArray, look_back
from inference.objective import Effort
from inference.planner import Round, fused_time, proactive_time, synchronous_time

RATES = (0.7, 0.12, 0.05, 0.03, 0.02)


def taken(rates: tuple[float, ...], tokens: int = 5000) -> FloatArray:
    """The chances of what a target takes that goes by these rates, whatever the context."""
    return np.random.default_rng(3).choice([*rates, 0.0], size=tokens, p=[*rates, 1 - sum(rates)])


CHAIN = taken((0.7,))
SITUATION = Situation(
    path=taken(RATES),
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
    """The synchronous chain of this length: `now` has a path of one rank, so that every tree is one."""
    return min(
        (one for one in of(DISTRIBUTED, now) if one.depth == length and not one.bets),
        key=lambda one: abs(one.nodes - length),
    )


def tree_of(one: Forecast, now: Situation = SITUATION) -> Tree:
    """The one that this forecast of the draft there is about."""
    assert now.call_there is not None
    made = trees(look_back(now.path), now.call_there, now.most_nodes)
    return next(
        tree
        for tree in made
        if (tree.nodes, tree.depth, tree.tokens) == (one.nodes, one.depth, one.tokens)
    )


@pytest.mark.parametrize("length", [1, 2, 4, 8])
def test_a_chain_takes_the_time_of_the_closed_form(length: int) -> None:
    now = replace(SITUATION, path=CHAIN)
    made, found = (
        Round(length * now.call(1), now.verify(length + 1), expected_chain_tokens(length, 0.7)),
        chain(now, length),
    )
    size = int(ROUND_BYTES + NODE_BYTES * length + VERDICT_BYTES)
    assert found.nodes == pytest.approx(length, abs=1)
    assert found.tokens == pytest.approx(made.tokens, rel=0.02)
    assert found.effort.wall == pytest.approx(
        synchronous_time(made, now.exchange(size) + now.queue), rel=0.05
    )
    assert found.effort.drafting == pytest.approx(made.drafting / made.tokens, rel=0.1)
    assert found.effort.bytes_up == pytest.approx(
        (ROUND_BYTES + NODE_BYTES * found.nodes) / found.tokens
    )


def test_the_target_alone_is_a_forward_and_the_queue_and_comes_first() -> None:
    assert forecasts(SITUATION)[0] == Forecast(
        TARGET_ONLY, 0, 0, 0, 1.0, Effort(0.03 + 0.0001 + 0.004, 0.0, 0.0, VERDICT_BYTES)
    )
    assert len(of(TARGET_ONLY)) == 1


def test_the_draft_beside_the_target_pays_no_network() -> None:
    for one in of(FUSED):
        made = Round(tree_of(one).drafting, SITUATION.verify(one.nodes + 1), one.tokens)
        assert one.effort.wall == pytest.approx(fused_time(made, SITUATION.queue))
        assert (one.effort.drafting, one.effort.bytes_up, one.bets) == (0.0, 0.0, 0)


def test_no_draft_there_and_no_room_there_mean_no_fused_forecast() -> None:
    assert not of(FUSED, replace(SITUATION, call_there=None))
    assert not of(FUSED, replace(SITUATION, room_there=1))
    assert 1 < max(one.nodes for one in of(FUSED, replace(SITUATION, room_there=9))) < 9


def test_drafting_takes_a_call_a_level_and_seldom_reached_levels_count_seldom() -> None:
    for tree in trees(look_back(SITUATION.path), lambda width: 1.0, 63):
        assert 1 <= tree.drafting <= tree.depth
        assert tree.tokens <= 1 + tree.drafting + 1e-9


def test_wide_levels_take_wide_calls() -> None:
    narrow, wide = (
        list(trees(look_back(SITUATION.path), call, 63))
        for call in (lambda width: 1.0, lambda width: float(width))
    )
    assert all(slow.drafting >= fast.drafting for fast, slow in zip(narrow, wide, strict=True))
    assert any(slow.drafting > 4 * fast.drafting for fast, slow in zip(narrow, wide, strict=True))


def test_trees_that_follow_confidence_beat_those_that_do_not_know_it() -> None:
    """The first two guesses are right as often in both worlds; in one of them the draft knows when the second is needed."""
    random = np.random.default_rng(1)
    sure, lot = random.random(4000) < 0.5, random.random(4000)
    first, second = np.where(sure, 0.98, 0.42), np.where(sure, 0.01, 0.4)
    knows = np.where(lot < first, first, np.where(lot < first + second, second, 0.0))
    blind = np.where(lot < first, 0.7, np.where(lot < first + second, 0.205, 0.0))
    far = replace(SITUATION, exchange=lambda size: 0.2)
    best = [
        min(one.effort.wall for one in of(DISTRIBUTED, replace(far, path=path)))
        for path in (knows, blind)
    ]
    assert best[0] < 0.9 * best[1]


def test_bets_take_the_time_between_waiting_and_always_hitting() -> None:
    for one in of(DISTRIBUTED):
        if one.bets:
            waiting = next(
                other
                for other in of(DISTRIBUTED)
                if not other.bets and other[1:3] + other[4:5] == one[1:3] + one[4:5]
            )
            between = (
                SITUATION.exchange(int(ROUND_BYTES + NODE_BYTES * one.nodes + VERDICT_BYTES))
                + SITUATION.queue
            )
            drafting = waiting.effort.drafting * one.tokens
            least = proactive_time(
                Round(drafting, SITUATION.verify(one.nodes + 1), one.tokens), between, 1.0
            )
            assert least - 1e-9 <= one.effort.wall < waiting.effort.wall


def test_a_bet_on_the_only_outcome_hides_as_many_calls_as_there_is_time_for() -> None:
    """A target that does what the draft says: of a chain of 4, one call is for what follows it and two levels fit into 57 ms."""
    now = replace(
        SITUATION,
        path=np.ones(10),
        call=lambda width: 0.019,
        verify=lambda nodes: 0.03,
        exchange=lambda size: 0.023,
    )
    one = next(one for one in of(DISTRIBUTED, now) if one.nodes == 4 and one.bets)
    assert one.bets == 1
    assert one.effort.wall == pytest.approx((4 * 0.019 + 0.057 - 2 * 0.019) / 5)
    assert one.effort.drafting == pytest.approx((4 * 0.019 + 0.019) / 5)


def test_without_time_for_a_call_there_are_no_bets() -> None:
    assert {one.bets for one in of(DISTRIBUTED, replace(SITUATION, call=lambda width: 0.06))} == {0}


def test_without_bets_none_are_looked_at() -> None:
    assert {one.bets for one in of(DISTRIBUTED, replace(SITUATION, bets=False))} == {0}
    assert {one.bets for one in of(DISTRIBUTED)} > {0}


@pytest.mark.parametrize("useless", [{"most_nodes": 0}, {"path": np.zeros(8)}])
def test_where_no_tree_is_possible_a_root_alone_can_still_be_sent(
    useless: dict[str, object],
) -> None:
    now = replace(SITUATION, **useless)  # type: ignore[arg-type]
    (alone,) = of(DISTRIBUTED, now)
    assert (alone.nodes, alone.tokens, alone.effort.drafting) == (0, 1.0, 0.0)
    assert alone.effort.wall == pytest.approx(
        now.exchange(int(ROUND_BYTES + VERDICT_BYTES)) + now.queue + now.verify(1)
    )
    assert not of(FUSED, now)


def test_no_tree_is_larger_than_the_target_takes() -> None:
    for most in (1, 7, 63):
        assert 0 < max(one.nodes for one in forecasts(replace(SITUATION, most_nodes=most))) <= most


def test_no_tree_is_deeper_than_it_has_nodes_for() -> None:
    for one in of(DISTRIBUTED):
        assert one.depth in (0, *DEPTHS)


def test_a_forecast_says_its_setting_in_words() -> None:
    effort = Effort(0.02)
    assert Forecast(TARGET_ONLY, 0, 0, 0, 1.0, effort).words == "target-only"
    assert (
        Forecast(DISTRIBUTED, 8, 4, 16, 3.0, effort).words
        == "distributed, 8 nodes of depth 4, 16 bets"
    )
    assert Forecast(FUSED, 8, 4, 0, 3.0, effort).words == "fused, 8 nodes of depth 4"
    assert Forecast(FUSED, 8, 4, 0, 3.0, effort).tokens_per_second == 50.0
