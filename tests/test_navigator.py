"""The navigator answers what the closed-form inequalities say, keeps to what is allowed, and changes its mind only for good reasons."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random

import pytest

from inference.acceptance import PRIOR_PATH, SHIPPED, AcceptanceModel
from inference.cost import Rates
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
from inference.hindsight import look_back
from inference.navigator import BELIEVED, IN_A_ROW, MOST_CORRECTION, WEIGHTS, Course, Navigator
from inference.objective import Effort, Terms, Wish, price_words
from inference.pilot import Knowledge
from inference.planner import Round, break_even_round_trip, fused_time, synchronous_time
from inference.times import DraftTimes, LinkTimes, TargetTimes

NODES = 63
MANY = 10**9
"""Tokens that leave no doubt."""

EVERY = frozenset({DISTRIBUTED, TARGET_ONLY, FUSED})
AGREEMENTS = (0.3, 0.55, 0.75, 0.92)
"""Chances that the target takes the draft's first guess; of those that it does not, it takes a third at each later rank."""

DEAR_DRAFT = Terms(
    Rates(0.1, usd_per_kwh=0.36, usd_per_gb_to_target=0.0, usd_per_gb_from_target=0.0),
    draft_watts=2000.0,
)
"""Drafting costs twice what the target does, by the second."""


def acceptance(first: float) -> AcceptanceModel:
    record = json.loads(SHIPPED.read_text(encoding="utf-8"))
    chances = [first, *[(1 - first) / 3 * (2 / 3) ** rank for rank in range(7)]]
    path = Random(first).choices([*chances, 0.0], [*chances, 1 - sum(chances)], k=PRIOR_PATH)
    return AcceptanceModel.from_record(record | {"paths": {"greedy": path, "sampled": path}})


def link(round_trip: float) -> LinkTimes:
    times = LinkTimes()
    for _ in range(5):
        times.observe(round_trip, 0.0, 100)
    return times


def knowledge(
    *,
    first: float = 0.75,
    level: float = 0.005,
    verify: float = 0.04,
    a_node: float = 1e-4,
    round_trip: float = 0.02,
    queue: float = 0.0,
    there: float | None = None,
) -> Knowledge:
    """level: seconds of a call of the draft; there: of the one beside the target.  verify, a_node: of a forward of the target."""
    target = TargetTimes(
        {(1, nodes): verify + a_node * nodes for nodes in (1, 2, 4, 8, 16, 32, 64)}
    )
    beside = None if there is None else DraftTimes({1: there, 32: there}).seconds
    return Knowledge(
        DraftTimes({1: level, 32: level}),
        target,
        link(round_trip),
        acceptance(first),
        queue,
        beside,
        10_000,
    )


def navigator(
    known: Knowledge,
    wish: Wish | None = None,
    terms: Terms | None = None,
    *,
    allowed: frozenset[str] = EVERY,
    bets: bool = False,
) -> Navigator:
    """With its first decision made."""
    made = Navigator(known, wish or Wish(), terms, allowed, NODES, bets=bets)
    made.decide()
    return made


def random_knowledge(
    seed: int, there: Callable[[float, Random], float | None]
) -> Iterator[Knowledge]:
    """there: seconds of a call beside the target, from those of one here."""
    random = Random(seed)
    for first in AGREEMENTS:
        for _ in range(15):
            level = 10 ** random.uniform(-3, -1.3)
            yield knowledge(
                first=first,
                level=level,
                verify=10 ** random.uniform(-2, -1),
                a_node=10 ** random.uniform(-5, -3),
                round_trip=random.choice([0.0, 10 ** random.uniform(-3, -0.5)]),
                queue=random.choice([0.0, 0.01]),
                there=there(level, random),
            )


def looked_at(now: Situation, call: Callable[[int], float]) -> Iterator[tuple[Tree, Round, float]]:
    """Every tree, the round that it makes with this draft, and what lies between the two machines in it."""
    for tree in trees(look_back(now.path), call, now.most_nodes):
        size = int(ROUND_BYTES + NODE_BYTES * tree.nodes + VERDICT_BYTES)
        yield (
            tree,
            Round(tree.drafting, now.verify(tree.nodes + 1), tree.tokens),
            now.exchange(size) + now.queue,
        )


def test_distributed_is_taken_exactly_where_the_round_trip_is_below_break_even() -> None:
    """I2: RTT < tokens * t_ar - t_v - drafting."""
    answers = set()
    for known in random_knowledge(1, lambda level, random: None):
        now = known.situation(NODES, bets=False, greedy=False)
        alone = now.verify(1) + now.queue
        pays = any(
            between < break_even_round_trip(alone, made)
            for _, made, between in looked_at(now, now.call)
        )
        answer = navigator(known).course.architecture
        assert answer == (DISTRIBUTED if pays else TARGET_ONLY)
        answers.add(answer)
    assert answers == {DISTRIBUTED, TARGET_ONLY}


def test_the_synchronous_split_never_beats_a_host_whose_draft_is_as_fast() -> None:
    """I1; and that host drafts exactly where a round of it is faster than the target alone."""
    answers = set()
    for known in random_knowledge(2, lambda level, random: level * random.uniform(0.3, 1.0)):
        now = known.situation(NODES, bets=False, greedy=False)
        assert now.call_there is not None
        alone = now.verify(1) + now.queue
        pays = any(
            fused_time(made, now.queue) < alone for _, made, _ in looked_at(now, now.call_there)
        )
        answer = navigator(known).course.architecture
        assert answer == (FUSED if pays else TARGET_ONLY)
        answers.add(answer)
    assert answers == {FUSED, TARGET_ONLY}


def test_a_faster_draft_here_is_weighed_against_the_one_there() -> None:
    answers = set()
    for known in random_knowledge(3, lambda level, random: level * random.uniform(2, 20)):
        now = known.situation(NODES, bets=False, greedy=False)
        assert now.call_there is not None
        times = {
            TARGET_ONLY: now.verify(1) + now.queue,
            FUSED: min(
                fused_time(made, now.queue) for _, made, _ in looked_at(now, now.call_there)
            ),
            DISTRIBUTED: min(
                synchronous_time(made, between) for _, made, between in looked_at(now, now.call)
            ),
        }
        answer = navigator(known).course.architecture
        assert answer == min(times, key=times.__getitem__)
        answers.add(answer)
    assert answers == EVERY


@pytest.mark.parametrize("round_trip", [0.0, 0.02, 0.2])
def test_a_draft_too_slow_for_its_agreement_is_left_at_every_distance(round_trip: float) -> None:
    """I3: where t_v = t_ar and no tree brings more than its drafting takes, not even loopback helps."""
    for first in AGREEMENTS:
        known = knowledge(first=first, level=0.041, verify=0.04, a_node=0.0, round_trip=round_trip)
        now = known.situation(NODES, bets=False, greedy=False)
        assert all(
            (made.tokens - 1) * now.verify(1) <= made.drafting
            for _, made, _ in looked_at(now, now.call)
        )
        assert navigator(known).course.architecture == TARGET_ONLY


def test_a_draft_fast_enough_for_its_agreement_pays_on_loopback() -> None:
    for first in AGREEMENTS:
        known = knowledge(
            first=first, level=0.9 * first * 0.04, verify=0.04, a_node=0.0, round_trip=0.0
        )
        assert navigator(known).course.architecture == DISTRIBUTED


def test_bets_beat_a_host_whose_draft_is_as_fast_only_within_the_time_of_its_drafting() -> None:
    """I4, for the setting that was taken."""
    bet = 0
    for known in random_knowledge(4, lambda level, random: level):
        course, now = (
            navigator(known, bets=True).course,
            known.situation(NODES, bets=True, greedy=False),
        )
        if course.architecture == DISTRIBUTED:
            one = course.forecast
            made, between = next(
                (made, between)
                for tree, made, between in looked_at(now, now.call)
                if (tree.nodes, tree.depth, tree.tokens) == (one.nodes, one.depth, one.tokens)
            )
            bet += one.bets > 0
            assert between - now.queue < made.drafting
    assert bet


@pytest.mark.parametrize(
    "allowed", [{DISTRIBUTED}, {DISTRIBUTED, TARGET_ONLY}, {DISTRIBUTED, FUSED, TARGET_ONLY}]
)
def test_only_what_is_allowed_is_taken_and_the_target_alone_is_always_shown(
    allowed: set[str],
) -> None:
    for known in random_knowledge(5, lambda level, random: level):
        course = navigator(known, allowed=frozenset(allowed)).course
        assert course.architecture in allowed
        assert {one.architecture for one in course.alternatives} == allowed | {TARGET_ONLY}
        assert course.forecast in course.alternatives


def test_a_target_that_tells_no_times_is_not_compared_with_before_some_are_seen() -> None:
    known = knowledge(level=0.5)
    known.target = TargetTimes()
    course = navigator(known)
    assert course.course.architecture == DISTRIBUTED
    assert all(one.tokens_per_second > 0 for one in course.course.alternatives)
    for _ in range(5):
        known.target.observe(1, 1, 0.01)
    decide(course, IN_A_ROW)
    assert course.course.architecture == TARGET_ONLY


@pytest.mark.parametrize("nodes", [0, 63])
def test_a_useless_draft_or_a_target_without_trees_leaves_a_root_a_round(nodes: int) -> None:
    known = knowledge(first=0.001)
    known.acceptance = AcceptanceModel.from_record(
        json.loads(SHIPPED.read_text(encoding="utf-8"))
        | {"paths": {"greedy": [0.0] * PRIOR_PATH, "sampled": [0.0] * PRIOR_PATH}}
    )
    course = Navigator(known, Wish(), None, frozenset({DISTRIBUTED}), nodes).course
    assert (course.architecture, course.forecast.nodes, course.forecast.bets) == (DISTRIBUTED, 0, 0)


def decide(course: Navigator, times: int) -> list[str]:
    return [course.decide().architecture for _ in range(times)]


def ratio(course: Navigator) -> float:
    """Time of a token by the target alone, for each by the best distributed setting."""
    walls = {one.architecture: one.effort.wall for one in course.course.alternatives}
    return walls[TARGET_ONLY] / walls[DISTRIBUTED]


def at_ratio(least: float, most: float) -> LinkTimes:
    """A link over which that ratio lies between these."""
    trips = (step / 1000 for step in range(0, 400, 4))
    return next(
        link(trip) for trip in trips if least < ratio(navigator(knowledge(round_trip=trip))) < most
    )


def test_a_small_difference_never_changes_the_architecture() -> None:
    for start, later in (((1.1, 2.0), (0.93, 0.99)), ((0.5, 0.9), (1.01, 1.07))):
        known = knowledge()
        known.link = at_ratio(*start)
        course = navigator(known)
        began = course.course.architecture
        known.link = at_ratio(*later)
        assert decide(course, 20) == [began] * 20
        assert navigator(known).course.architecture != began


def test_a_clear_difference_changes_it_after_as_many_decisions_in_a_row() -> None:
    known = knowledge()
    known.link = near = at_ratio(1.1, 2.0)
    course, far = navigator(known), at_ratio(0.5, 0.9)
    known.link = far
    assert decide(course, IN_A_ROW) == [DISTRIBUTED] * (IN_A_ROW - 1) + [TARGET_ONLY]
    known.link = near
    assert decide(course, IN_A_ROW) == [TARGET_ONLY] * (IN_A_ROW - 1) + [DISTRIBUTED]
    for _ in range(5):  # better now and then is not better in a row
        known.link = far
        assert decide(course, IN_A_ROW - 1) == [DISTRIBUTED] * (IN_A_ROW - 1)
        known.link = near
        assert decide(course, 1) == [DISTRIBUTED]


def test_what_was_measured_moves_a_wrong_forecast() -> None:
    course = navigator(knowledge())
    assert course.course.architecture == DISTRIBUTED
    wrong = course.course.forecast
    course.measured(MANY, wrong.effort.times(MANY * 1.05))
    assert course.decide().forecast.effort.wall == pytest.approx(1.05 * wrong.effort.wall)
    course.measured(MANY, wrong.effort.times(MANY))
    assert course.decide().forecast.effort.wall == pytest.approx(wrong.effort.wall)
    course.measured(MANY, wrong.effort.times(MANY * 100))
    course.decide()
    assert ratio(course) == pytest.approx(ratio(navigator(knowledge())) / MOST_CORRECTION)


def test_few_tokens_move_a_forecast_a_little_and_the_same_again_moves_it_further() -> None:
    course = navigator(knowledge())
    wrong, walls = course.course.forecast, list[float]()
    for _ in range(40):
        course.measured(BELIEVED / 4, wrong.effort.times(BELIEVED / 4 * 1.05))
        walls.append(course.decide().forecast.effort.wall / wrong.effort.wall)
    assert walls[0] == pytest.approx(1.01)
    assert walls == sorted(walls)
    assert walls[-1] == pytest.approx(1.05, abs=1e-4)


def test_an_architecture_that_disappointed_is_left_and_tried_again_some_time() -> None:
    course = navigator(knowledge())
    course.measured(MANY, course.course.forecast.effort.times(MANY * 3))
    assert decide(course, IN_A_ROW)[-1] == TARGET_ONLY
    later = decide(course, 60)
    back = later.index(DISTRIBUTED)
    assert back > 5
    assert later == [TARGET_ONLY] * back + [DISTRIBUTED] * (60 - back)


def test_every_decision_is_told() -> None:
    told: list[Course] = []
    course = Navigator(knowledge(), Wish(), None, EVERY, NODES, tell=told.append)
    assert course.course is told[0]
    course.decide()
    assert len(told) == 2
    assert told[-1] is course.course


def options(known: Knowledge, *, bets: bool) -> list[Forecast]:
    return forecasts(known.situation(NODES, bets, greedy=False))


def test_a_speed_that_must_be_kept_is_kept_at_least_cost() -> None:
    known, cost = knowledge(), DEAR_DRAFT.tariff("total_cost")
    every = options(known, bets=True)
    cheapest, fastest = (
        min(every, key=lambda one: cost.of(one.effort)),
        max(every, key=lambda one: one.tokens_per_second),
    )
    assert cheapest.architecture == TARGET_ONLY
    span = fastest.tokens_per_second - cheapest.tokens_per_second
    assert span > 0
    for share in (0.0, 0.2, 0.5, 0.8, 0.95, 1.0):
        least = cheapest.tokens_per_second + share * span
        course = navigator(known, Wish(min_tps=least * (1 - 1e-9)), DEAR_DRAFT, bets=True).course
        assert course.notice is None
        assert course.forecast.tokens_per_second >= least * (1 - 1e-9)
        assert cost.of(course.forecast.effort) == min(
            cost.of(one.effort) for one in every if one.tokens_per_second >= least * (1 - 1e-9)
        )


def test_a_cost_that_must_be_kept_is_kept_at_most_speed() -> None:
    known, cost = knowledge(), DEAR_DRAFT.tariff("total_cost")
    every = options(known, bets=True)
    costs = sorted(cost.of(one.effort) for one in every)
    fastest = max(every, key=lambda one: one.tokens_per_second)
    for most in (costs[0], 1.2 * costs[0], 1.5 * costs[0], cost.of(fastest.effort)):
        course = navigator(
            known, Wish(max_per_token=most * (1 + 1e-9)), DEAR_DRAFT, bets=True
        ).course
        assert course.notice is None
        assert cost.of(course.forecast.effort) <= most * (1 + 1e-9)
        assert course.forecast.tokens_per_second == max(
            one.tokens_per_second for one in every if cost.of(one.effort) <= most * (1 + 1e-9)
        )
    assert course.forecast == fastest


def test_a_speed_that_cannot_be_had_is_said_with_the_most_that_can() -> None:
    known = knowledge()
    fastest = max(options(known, bets=True), key=lambda one: one.tokens_per_second)
    course = navigator(
        known, Wish(min_tps=2 * fastest.tokens_per_second), DEAR_DRAFT, bets=True
    ).course
    assert course.forecast == fastest
    assert course.notice is not None
    assert f"{fastest.tokens_per_second:.1f} ({fastest.words})" in course.notice


def test_a_cost_that_cannot_be_had_is_said_with_the_least_that_can() -> None:
    known, cost = knowledge(), DEAR_DRAFT.tariff("total_cost")
    cheapest = min(options(known, bets=True), key=lambda one: cost.of(one.effort))
    course = navigator(
        known, Wish(max_per_token=cost.of(cheapest.effort) / 2), DEAR_DRAFT, bets=True
    ).course
    assert course.forecast == cheapest
    assert course.notice is not None
    assert (
        f"{price_words('total_cost', cost.of(cheapest.effort))} ({cheapest.words})" in course.notice
    )


def test_more_weight_on_cost_never_makes_it_dearer_or_faster() -> None:
    known, cost = knowledge(), DEAR_DRAFT.tariff("total_cost")
    courses = [
        navigator(known, Wish(weight=weight), DEAR_DRAFT, bets=True).course.forecast
        for weight in WEIGHTS
    ]
    costs, speeds = (
        [cost.of(one.effort) for one in courses],
        [one.tokens_per_second for one in courses],
    )
    assert costs == sorted(costs, reverse=True)
    assert speeds == sorted(speeds, reverse=True)
    assert costs[0] > costs[-1]


def test_a_wish_that_cannot_be_counted_is_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="watts of the draft"):
        navigator(knowledge(), Wish("draft_energy", weight=1.0), Terms(Rates(1.0)))
    assert (
        navigator(knowledge(), Wish("draft_energy"), Terms(Rates(1.0))).course.architecture
        == DISTRIBUTED
    )  # speed alone counts nothing


def test_energy_of_the_draft_alone_is_saved_by_not_drafting() -> None:
    assert (
        navigator(knowledge(), Wish("draft_energy", weight=1.0), DEAR_DRAFT).course.architecture
        == TARGET_ONLY
    )
    assert navigator(knowledge(), Wish(), DEAR_DRAFT).course.architecture == DISTRIBUTED


def test_an_effort_of_no_tokens_says_nothing() -> None:
    course = navigator(knowledge())
    before = course.course.forecast
    course.measured(0, Effort(5.0))
    assert course.decide().forecast == before
