"""Which trees go into a forward, how much of them, and whether to wait: against trying everything, and in cases worked out by hand."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.roster import Roster
from inference.sampling import SamplingParams
from inference.scheduler import (
    FIRST_RATE,
    LEAST_SAVED,
    WORTH_CUTTING,
    WORTH_LEAVING,
    Arrival,
    Survival,
    plan_batch,
    waiting_time,
)
from inference.session import Round, Session
from inference.times import KEPT, ForwardTimes
from inference.tree import TokenTree
from inference.turns import Turns
from tests.wire_fixtures import Successor

Gains = list[np.ndarray]


@st.composite
def ready_trees(draw: st.DrawFn) -> Gains:
    """Up to six trees of up to eight nodes; a tree cut after k + 1 nodes brings 1 and the sum of k falling rates."""
    trees = []
    for _ in range(draw(st.integers(1, 6))):
        rates = sorted(draw(st.lists(st.floats(0, 1), max_size=7)), reverse=True)
        trees.append(np.cumsum([1.0, *rates]))
    return trees


@st.composite
def devices(draw: st.DrawFn) -> tuple[list[int], list[int], float, float]:
    """Rows and nodes that calls are padded to, milliseconds of a call and of each computed node."""
    sizes = st.lists(st.integers(1, 8), max_size=3)
    return (
        sorted({*draw(sizes), 8}),
        sorted({*draw(sizes), 8}),
        draw(st.floats(0.1, 10)),
        draw(st.floats(0, 5)),
    )


def seconds_of(device: tuple[list[int], list[int], float, float], rows: int, nodes: int) -> float:
    row_sizes, node_sizes, fixed, each = device
    padded = min(size for size in row_sizes if size >= rows) * min(
        size for size in node_sizes if size >= nodes
    )
    return (fixed + each * padded) / 1e3


def rate(gains: Gains, members: tuple[int, ...], nodes: int, seconds: float) -> float:
    return (
        float(sum(gains[index][min(len(gains[index]), nodes) - 1] for index in members)) / seconds
    )


@given(ready_trees(), devices(), st.floats(0, 0.05))
def test_the_plan_is_as_good_as_all_that_it_considers_and_never_worse_than_everybody_uncut(
    gains: Gains, device: tuple[list[int], list[int], float, float], idle: float
) -> None:
    """Considered, for every cut to a tree's size or a power of two: everybody, the oldest 1, 2, 4 ..., and the oldest with all that need no cut.

    The best of these is found up to the margins that cutting, and leaving others out, must bring.
    """
    whole = seconds_of(device, len(gains), max(map(len, gains)))

    def rate_of(members: tuple[int, ...], nodes: int) -> float:
        return rate(gains, members, nodes, seconds_of(device, len(members), nodes) + idle)

    plan = plan_batch(gains, lambda rows, nodes: seconds_of(device, rows, nodes), idle)
    found = rate_of(plan.members, plan.nodes)
    everybody, most = tuple(range(len(gains))), max(map(len, gains))
    assert 0 in plan.members
    assert found >= rate_of(everybody, most) * (1 - 1e-9)
    for nodes in {size for size in (1, 2, 4, 8) if size <= most} | set(map(len, gains)):
        uncut = tuple(index for index in everybody if index == 0 or len(gains[index]) <= nodes)
        for members in (
            everybody,
            uncut,
            *(everybody[:count] for count in (1, 2, 4) if count <= len(gains)),
        ):
            if whole - seconds_of(device, len(members), nodes) >= LEAST_SAVED:
                worth = (
                    WORTH_CUTTING
                    if members in (everybody, uncut) and len(members) > 1
                    else WORTH_LEAVING
                )
                assert rate_of(members, nodes) <= found * worth * (1 + 1e-9)


@given(st.lists(st.floats(0, 1), max_size=7), st.integers(1, 6), devices())
def test_among_equal_trees_no_other_choice_of_members_and_cut_would_be_better_where_times_step_at_powers_of_two(
    rates: list[float], count: int, device: tuple[list[int], list[int], float, float]
) -> None:
    """Every subset that contains the oldest, and every cut, is tried."""
    steps = ([1, 2, 4, 8], [1, 2, 4, 8], *device[2:])
    gains = [np.cumsum([1.0, *sorted(rates, reverse=True)])] * count
    plan = plan_batch(gains, lambda rows, nodes: seconds_of(steps, rows, nodes), 0.0)
    found = rate(gains, plan.members, plan.nodes, seconds_of(steps, len(plan.members), plan.nodes))
    whole = seconds_of(steps, count, len(gains[0]))
    for others in range(count):
        for members in combinations(range(1, count), others):
            for nodes in range(1, len(gains[0]) + 1):
                cost = seconds_of(steps, 1 + others, nodes)
                there = (
                    rate(gains, (0, *members), nodes, cost) if whole - cost >= LEAST_SAVED else 0.0
                )
                assert there <= found * (WORTH_LEAVING if 1 + others < count else WORTH_CUTTING) * (
                    1 + 1e-9
                )


def test_one_row_too_many_for_a_graph_waits_for_the_next_forward() -> None:
    gains = [Survival(4).gains(4)] * 5
    plan = plan_batch(gains, lambda rows, nodes: 0.04 if rows <= 4 else 0.08, 0.0)
    assert (plan.members, plan.nodes) == ((0, 1, 2, 3), 4)


def test_a_busy_target_cuts_nodes_that_hardly_ever_bring_a_token_and_an_idle_one_does_not() -> None:
    gains = [np.array([1.0, 1.6, 1.61, 1.62])]

    def seconds(rows: int, nodes: int) -> float:
        return 0.010 * nodes

    assert plan_batch(gains, seconds, 0.0).nodes == 1
    assert plan_batch(gains, lambda rows, nodes: 0.010 + 0.005 * nodes, 0.0).nodes == 2
    assert plan_batch(gains, lambda rows, nodes: 0.010 + 0.0001 * nodes, 1.0).nodes == 4


def flat(rows: int, nodes: int) -> float:
    """A forward that costs the same for everybody."""
    return 0.040


def test_nobody_waits_alone_or_for_company_that_does_not_pay() -> None:
    assert waiting_time(3.0, 1, 16, [], flat) == 0.0
    assert waiting_time(3.0, 1, 16, [Arrival(0.050, 3.0)], flat) == 0.0  # 3 in 40 ms, or 6 in 90
    assert (
        waiting_time(3.0, 1, 16, [Arrival(0.001, 3.0)], lambda rows, nodes: 0.040 * rows) == 0.0
    )  # a row costs what it brings


def test_company_that_pays_is_waited_for_as_long_as_it_does() -> None:
    arrivals = [Arrival(0.012, 3.0), Arrival(0.010, 3.0), Arrival(0.090, 3.0)]
    assert waiting_time(3.0, 1, 16, arrivals, flat) == 0.012  # 9 in 52 ms; 12 would take 130
    assert (
        waiting_time(3.0, 1, 16, [Arrival(0.030, 0.1), Arrival(0.031, 9.0)], flat) == 0.031
    )  # the second pays for both


def company(answered: float) -> tuple[Turns, Roster]:
    """Two users who think for 100 ms. One asked at 2.0, the other was answered at `answered`; a forward of any shape takes 40 ms."""
    model = Successor(rows=2)
    turns, roster = Turns(model), Roster(model, waiting=0)
    turns.record((1, 2), 0.040, 0.0)
    for last in (1.9, answered):
        session = Session([1], SamplingParams(), "", 100, 4)
        roster.add(session)
        roster.queue(session)
        roster.hand_out_rows()
        for moment in (last - 0.4, last - 0.2, last):
            session.asks(Round(moment - 0.1, TokenTree.chain([1, 2])))
            session.answered(moment, 2)
    roster.sessions[0].asks(Round(2.0, TokenTree.chain([1, 2])))
    return turns, roster


def test_a_session_that_waited_for_the_forward_before_still_waits_for_company() -> None:
    """The other one comes at 2.05; until 2.03 the target was busy. Served together they will ask together."""
    turns, roster = company(answered=1.95)
    assert turns.pause(roster, 2.03) == pytest.approx(0.02)
    assert turns.pause(roster, 2.049) == pytest.approx(0.001)


def test_nobody_is_kept_from_a_free_target_for_longer_than_a_forward_takes_alone() -> None:
    turns, roster = company(answered=1.975)
    assert turns.pause(roster, 2.03) == 0.0  # 45 ms
    assert turns.pause(roster, 2.036) == 0.0  # 39 ms, but 6 have passed


def test_the_patience_begins_anew_after_a_forward() -> None:
    turns, roster = company(answered=1.95)
    assert turns.pause(roster, 2.0) == 0.0
    turns.next(roster.working)
    assert turns.pause(roster, 2.03) == pytest.approx(0.02)


def test_survival_thinks_well_of_what_it_does_not_know_and_learns_where_tokens_are_accepted() -> (
    None
):
    survival = Survival(4)
    assert survival.gains(3).tolist() == pytest.approx([1.0, 1 + FIRST_RATE, 1 + 2 * FIRST_RATE])
    for _ in range(300):
        survival.count(4, (2,))
    gains = survival.gains(4)
    assert np.diff(gains) == pytest.approx([0.0, 1.0, 0.0], abs=1e-3)


def test_a_node_that_is_cut_is_tried_again_some_day() -> None:
    survival = Survival(3)
    for _ in range(300):
        survival.count(3, ())
    assert np.diff(survival.gains(3)) == pytest.approx([0.0, 0.0], abs=1e-3)
    for _ in range(300):
        survival.count(2, ())
    assert np.diff(survival.gains(3)) == pytest.approx([0.0, FIRST_RATE], abs=0.1)


def test_survival_forgets() -> None:
    survival = Survival(2)
    for path in [(1,)] * 300 + [()] * 100:
        survival.count(2, path)
    assert survival.gains(2)[1] < 1.1


def test_times_are_medians_of_the_latest_samples() -> None:
    times = ForwardTimes()
    assert times.seconds(1, 16) == 0.0
    for seconds in (0.010, 0.500, 0.012):
        times.record(1, 16, seconds)
    assert times.seconds(1, 16) == 0.012
    for _ in range(KEPT):
        times.record(1, 16, 0.020)
    assert times.seconds(1, 16) == 0.020


def test_one_disturbed_forward_makes_no_other_shape_look_cheap() -> None:
    times = ForwardTimes()
    times.record(1, 8, 0.002)
    times.record(1, 5, 0.020)  # the first of its shape, on a busy machine
    assert times.seconds(1, 4) == times.seconds(1, 5)
    assert plan_batch([Survival(64).gains(5)], times.seconds, 0.0).nodes == 5


def test_shapes_never_seen_lie_on_the_line_through_those_that_were() -> None:
    times = ForwardTimes()
    times.record(1, 16, 0.010 + 16 * 0.001)
    assert times.seconds(8, 64) == times.seconds(1, 16)  # one shape says nothing of others
    times.record(4, 16, 0.010 + 64 * 0.001)
    assert times.seconds(2, 16) == pytest.approx(0.010 + 32 * 0.001)
    assert times.seconds(32, 16) == pytest.approx(0.010 + 512 * 0.001)


@given(
    st.dictionaries(
        st.tuples(st.integers(1, 8), st.integers(1, 64)),
        st.floats(1e-4, 1.0),
        min_size=1,
        max_size=6,
    )
)
def test_estimates_are_positive_and_never_fall_with_size_whatever_was_measured(
    seen: dict[tuple[int, int], float],
) -> None:
    times = ForwardTimes()
    for shape, seconds in seen.items():
        times.record(*shape, seconds)
    unseen = [shape for shape in [(9, nodes) for nodes in range(1, 300, 23)] if shape not in seen]
    estimates = [times.seconds(*shape) for shape in unseen]
    assert min(estimates) >= 0
    assert all(later >= earlier - 1e-12 for earlier, later in pairwise(estimates))
