"""How wide a forward is, and whose turn: against trying everything, and on curves by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.admission import Admission
from inference.engine.calibration import Calibration
from inference.engine.scheduler import (
    BatchPlan,
    ForwardKind,
    ForwardSeconds,
    ReadySets,
    Scheduler,
    allowed_deficit,
    plan_width,
)
from inference.engine.sessions.session import Session
from inference.engine.tuning import TUNING
from inference.order import Decode, Pace
from inference.proposer import MODEL, Nodes
from inference.sampling import SamplingParams
from inference.times import TRUSTED, Cost, Times
from tests.support.clock import Clock
from tests.support.exact import Exact, chain

ONE = 0.040
MOST = 32


def cpu(rows: int, nodes: int) -> float:
    """Two tokens take nearly twice as long as one."""
    return 0.004 + 0.036 * rows * nodes


def neuron(rows: int, nodes: int) -> float:
    """Four rows: 40 ms with a node each, 65 with up to 16, 120 with more."""
    return ONE if nodes == 1 else 0.065 if nodes <= 16 else 0.120


def flat(rows: int, nodes: int) -> float:
    return ONE


class Bringing(NamedTuple):
    """A session: a node brings as much as `rates` say, the root one token."""

    rates: tuple[float, ...]
    credit: float = 0.0

    def tokens(self, nodes: int) -> float:
        return 1 + sum(self.rates[: nodes - 1])


def width_of(offers: Sequence[Bringing], seconds: ForwardSeconds, most: int) -> int:
    values = np.zeros((len(offers), 1 + max(len(offer.rates) for offer in offers)))
    for row, offer in zip(values, offers, strict=True):
        row[: 1 + len(offer.rates)] = [1.0, *offer.rates]
    credit = np.array([offer.credit for offer in offers])

    def cost(nodes: int) -> Cost:
        return Cost(seconds(len(offers), nodes), seconds(len(offers), nodes))

    return plan_width(values, credit, cost, most, premium=TUNING.min_gain)


LONE = Bringing(())
SURE = Bringing((0.9,) * 31)


def test_an_uncertain_time_within_the_promise_may_be_wide_and_a_gain_within_its_noise_not() -> None:
    def little_more(rows: int, nodes: int) -> float:
        return ONE * (1.0 if nodes == 1 else 0.99 / TUNING.min_rate)

    assert width_of([SURE, LONE], little_more, MOST) == MOST
    assert width_of([Bringing((TUNING.min_gain - 1.001,))], flat, MOST) == 1


OFFERS = st.lists(
    st.builds(
        Bringing,
        st.lists(st.floats(0, 1), max_size=12).map(lambda rates: tuple(sorted(rates)[::-1])),
        st.floats(-1, 4),
    ),
    min_size=1,
    max_size=5,
)
STEPS = st.lists(st.floats(0, 1), min_size=4, max_size=4).map(
    lambda more: [sum(more[:width]) for width in range(5)]
)


@given(OFFERS, STEPS)
def test_the_width_is_the_best_of_those_that_keep_everybodys_promise(
    offers: Sequence[Bringing], steps: Sequence[float]
) -> None:
    def seconds(rows: int, nodes: int) -> float:
        return ONE * (1 + steps[(nodes - 1).bit_length()])

    def rate(width: int) -> float:
        return sum(offer.tokens(width) for offer in offers) / seconds(1, width)

    def kept(width: int) -> bool:
        needed = TUNING.min_rate * seconds(1, width) / ONE
        return all(offer.tokens(width) + offer.credit >= needed for offer in offers)

    width = width_of(offers, seconds, 16)
    assert width == 1 or (kept(width) and rate(width) > rate(1))
    widest = max(len(offer.rates) for offer in offers) + 1
    for other in (2, 4, 8, 16):
        if kept(other) and other < 2 * widest:
            assert rate(other) <= TUNING.min_gain * rate(width) * (1 + 1e-9)


def session(*chances: float, length: int = 3, pace: Pace = Pace.GO_ON, end: int = 900) -> Session:
    """A session that decodes, with a candidate of each chance below its root."""
    made = Session(list(range(length)), SamplingParams(), "", 1000, Calibration())
    made.set_order(Decode(end, pace=pace, credit=500))
    stream = made.candidates.join()
    tokens = [500 + index for index in range(len(chances))]
    said = Nodes(length - 1, 0, [0] * len(chances), tokens, chances)
    made.candidates.append(stream, said, lambda who, depth, claimed: claimed)
    return made


def turns(curve: ForwardSeconds, rows: int = 4, sizes: Sequence[int] = ()) -> Scheduler:
    """On a device whose times are known."""
    model = Exact(rows, Clock(), sizes=sizes)
    nodes = sizes or (1, 2, 4, 8, 16, 32)
    known = {(row, node): curve(row, node) for row in range(1, rows + 1) for node in nodes}
    return Scheduler(model, Times(known, measured=True), MOST)


def trees(*ready: Session) -> ReadySets:
    return {ForwardKind.TREES: ready}


def sizes_of(plan: BatchPlan) -> list[int]:
    """Nodes of each tree."""
    entries: Sequence[Any] = plan.entries
    return [len(entry[1]) for entry in entries]


def chunks_of(plan: BatchPlan) -> list[int]:
    """Tokens of each prompt's chunk."""
    return sizes_of(plan) if plan.kind is ForwardKind.PREFILL else []


def test_a_session_that_waits_gets_its_whole_tree_and_holds_up_none_that_goes_on() -> None:
    waiting = session(*[0.01] * 20, pace=Pace.WAIT)
    assert sizes_of(turns(cpu).next(trees(waiting))) == [21]
    assert waiting.room == MOST - 1
    beside = session(*[0.01] * 5, pace=Pace.WAIT)
    assert sizes_of(turns(cpu).next(trees(waiting, beside))) == [21, 6]
    assert sizes_of(turns(cpu).next(trees(waiting, session()))) == [1, 1]


def test_a_forward_is_no_deeper_than_what_may_be_committed() -> None:
    line = session(end=6)
    said = chain(2, range(500, 509), 1.0)
    line.candidates.append(line.candidates.streams[0], said, lambda who, depth, claimed: claimed)
    assert sizes_of(turns(flat).next(trees(line))) == [3]  # and a token of the target's own


def test_one_whose_guesses_have_missed_keeps_nobody_narrow() -> None:
    """Among many sessions somebody's always have. Who is a token behind already is not slowed."""
    ready, planned = [session(*[0.9] * 15) for _ in range(4)], turns(neuron, sizes=(1, 16, 32))
    ready[0].candidates.commit([500])  # taken, and nothing hangs below it
    assert sizes_of(planned.next(trees(*ready))) == [1, 16, 16, 16]
    ready[0].add_service(-0.5)
    assert sizes_of(planned.next(trees(*ready))) == [1] * 4


def test_who_takes_fewer_candidates_than_expected_is_believed_less() -> None:
    """Its tenant's record may be better than its own draft."""
    ready, planned = [session(*[0.9] * 15) for _ in range(4)], turns(neuron, sizes=(1, 16, 32))
    ready[0].record.observe(expected=2.0, accepted=3)
    assert ready[0].record.factor == 1.0
    assert sizes_of(planned.next(trees(*ready))) == [16] * 4
    ready[0].record.observe(expected=1000.0, accepted=0)
    assert sizes_of(planned.next(trees(*ready))) == [1] * 4


def test_a_deficit_is_what_root_only_forwards_give_back_before_the_text_ends() -> None:
    """None is allowed to a session whose candidates were never taken."""
    missed = session(0.9)
    missed.candidates.commit([9])
    assert allowed_deficit(missed) == allowed_deficit(session()) == 0.0
    for left, deficit in ((500, TUNING.max_deficit), (30, 30 * (1 - TUNING.min_rate)), (0, 0.0)):
        owing = session(0.9, length=3, end=4 + left)
        owing.candidates.commit([500])
        owing.extend([500], [MODEL])
        assert allowed_deficit(owing) == pytest.approx(deficit)


def test_room_is_what_could_be_worth_computing() -> None:
    ready = session(0.9)
    for curve, sizes, room in ((flat, (), 31), (neuron, (1, 16, 32), 31)):
        turns(curve, sizes=sizes).next(trees(ready))
        assert ready.room == room

    def steep(rows: int, nodes: int) -> float:
        return ONE * (nodes if nodes <= 2 else 100)

    turns(steep).next(trees(ready))
    assert ready.room == 1


def test_after_many_wide_forwards_one_is_made_without_candidates() -> None:
    """The time of a root-only forward is what everybody is promised, so it must stay known."""
    wide, sizes = turns(flat), list[int]()
    for _ in range(4 * TUNING.explore):
        plan = wide.next(trees(session(*[0.9] * 7)))
        sizes += sizes_of(plan)
        wide.record((1, sizes[-1]), ONE)
    alone = [-1, *(index for index, size in enumerate(sizes) if size == 1)]
    between = [after - before - 1 for before, after in pairwise(alone)]
    assert between == [TUNING.first_explore, 8, 16, 32, TUNING.explore, TUNING.explore]
    assert sizes_of(wide.next(trees(*[session(*[0.9] * 7)] * 2))) == [8, 8]  # of two rows anew


def test_kinds_of_forwards_take_turns() -> None:
    filling, ready, in_graph = on_a_row(500), session(), session()
    mixed, kinds = turns(flat), list[ForwardKind]()
    for _ in range(9):
        wanted = {kind: list[Session]() for kind in ForwardKind}
        wanted |= {
            ForwardKind.PREFILL: [filling],
            ForwardKind.TREES: [ready],
            ForwardKind.ROUNDS: [in_graph],
        }
        kinds.append(mixed.next(wanted).kind)
    assert set(kinds) == {ForwardKind.PREFILL, ForwardKind.TREES, ForwardKind.ROUNDS}
    assert kinds == kinds[:3] * 3
    assert all(first != second for first, second in pairwise(kinds))
    assert not turns(flat).next({}).entries


def on_a_row(length: int) -> Session:
    """A session whose prompt is to be prefilled."""
    model = Exact(4, Clock())
    made = Session(list(range(length)), SamplingParams(), "", 1000, Calibration())
    admission = Admission(model, 0)
    admission.add(made, 0.0)
    made.set_order(Decode(length + 1))
    admission.hand_out_rows(0.0)
    return made


def filling_beside(decoding: Session) -> ReadySets:
    return {ForwardKind.PREFILL: [on_a_row(500)], ForwardKind.TREES: [decoding]}


def test_a_prompt_alone_has_chunks_as_long_as_the_model_and_the_time_of_a_step_allow() -> None:
    ready = {ForwardKind.PREFILL: [on_a_row(500)]}
    assert chunks_of(turns(cpu).next(ready)) == [Exact.max_nodes]
    assert chunks_of(turns(lambda rows, nodes: 0.5 * nodes).next(ready)) == [16]
    assert 0.5 * 16 <= TUNING.max_chunk_seconds < 0.5 * 32
    short = {ForwardKind.PREFILL: [on_a_row(21) for _ in range(4)]}
    assert chunks_of(turns(flat).next(short)) == [20, 20, 20]  # 60 of 64 tokens share a forward


def test_a_chunk_holds_up_who_decodes_by_a_bounded_time() -> None:
    """Twice the time of its own forwards, which are wider when it has candidates."""

    def linear(rows: int, nodes: int) -> float:
        return 0.020 + 0.001 * nodes

    for chances, size in (((), TUNING.min_chunk), ([0.9] * 31, 64)):
        ready, busy = filling_beside(session(*chances)), turns(linear)
        made = [busy.next(ready) for _ in range(4)]
        chunks = [size for plan in made[1:] for size in chunks_of(plan)]
        assert set(chunks) == {size}
        width = sizes_of(made[1] if made[1].kind is ForwardKind.TREES else made[2])[0]
        assert linear(1, size) <= TUNING.prefill_share * linear(1, width)


def test_three_whole_chunks_tell_what_one_takes_where_no_profile_does() -> None:
    """By the largest profiled shape, of 4 rows, it seems to take seven times as long."""

    def curve(rows: int, nodes: int) -> float:
        return 0.020 + 0.001 * rows * nodes

    ready, busy = filling_beside(session()), turns(curve)
    for seconds, size in ((None, TUNING.min_chunk), (0.040, Exact.max_nodes)):
        if seconds is not None:
            for _ in range(TRUSTED):
                busy.record((1, Exact.max_nodes), seconds)
        made = [busy.next(ready) for _ in range(4)]
        assert {size for plan in made[1:] for size in chunks_of(plan)} == {size}


def test_what_is_promised_is_what_root_only_forwards_would_bring_in_the_same_time() -> None:
    assert turns(neuron).promised((4, 16), 4, 0.080) == pytest.approx(TUNING.min_rate * 2)
    assert turns(neuron).promised((4, 1), 4, 0.100) == TUNING.min_rate  # nothing is quicker
