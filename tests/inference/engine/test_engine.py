"""Many sessions on one engine: each gets its own text, and no more of it than was asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pytest

from inference.backends import Chosen, Segment
from inference.engine.batch_runner import EngineEvent, Evicted
from inference.engine.engine import Engine
from inference.engine.forward import Commit
from inference.engine.sessions.session import Session
from inference.engine.tuning import TUNING
from inference.errors import Busy, LimitExceeded, Unavailable
from inference.order import MAX_CREDIT, MIN_CREDIT, Decode, End, Pace
from inference.proposer import NOBODY, Nodes
from inference.sampling import SamplingParams
from inference.tree.candidates import ProposalStream
from tests.support.clock import Clock, WorkingClock
from tests.support.exact import (
    FAULTY,
    GREEDY,
    VOCABULARY,
    Cost,
    Exact,
    asked,
    chain,
    exact_engine,
    finish,
    free,
    opened,
    own_text,
    prompt_of,
    run_dry,
    running,
    text_of,
    together,
)
from tests.support.refusals import assert_refused

SAMPLINGS = [GREEDY, SamplingParams(0.7, seed=5), SamplingParams(1.0, seed=6)]
PROMPT = [1, 2, 3]
LAST = len(PROMPT) - 1
TEXT = own_text(PROMPT, 600)
WAIT = 20.0
"""Seconds after which a test fails instead of hanging."""


# --- what is made


def test_all_sessions_go_into_one_forward_and_each_gets_its_own_text() -> None:
    engine, model, _ = exact_engine(rows=3)
    sessions = [
        opened(engine, prompt_of(number), params) for number, params in enumerate(SAMPLINGS)
    ]
    model.calls.clear()
    for session in sessions:
        engine.decode(session, Decode(session.length + 12))
    run_dry(engine)
    assert [text_of(session) for session in sessions] == [
        own_text(prompt_of(number), 12, params) for number, params in enumerate(SAMPLINGS)
    ]
    assert {rows for rows, _ in model.calls} == {3}


def test_progress_tells_who_named_each_token_and_what_it_took() -> None:
    engine, _, _ = exact_engine(times=free)
    session = asked(engine, PROMPT, 12)
    own, other = engine.join(session), engine.join(session)
    engine.append(session, own, chain(LAST, TEXT[:2], chance=0.5))
    engine.append(session, other, chain(LAST, TEXT[:3], chance=0.4, proposer=2))
    assert engine.progress(session, 3, own).held == 3
    engine.step()
    now = engine.progress(session, len(PROMPT), own)
    assert now.tokens == tuple(TEXT[:4])
    assert now.proposers == (0, 0, 2, NOBODY)
    assert (now.known, now.held, now.nodes, now.forwards, now.lone) == (2, 0, 4, 1, 0)
    assert engine.progress(session, 3, other).known == 3
    engine.step()
    later = engine.progress(session, len(PROMPT) + 4, own)
    assert (later.position, later.tokens, later.proposers) == (7, (TEXT[4],), (NOBODY,))
    assert (later.nodes, later.forwards, later.lone) == (5, 2, 1)
    assert later.model_seconds == pytest.approx(0.020)
    for _ in range(2):
        engine.leave(session, other)
    engine.append(session, other, chain(session.length - 1, TEXT[5:8], proposer=2))
    assert engine.step()
    assert text_of(session) == TEXT[:6]


def test_what_a_forward_knew_is_what_had_come_when_it_began() -> None:
    engine, model, _ = exact_engine(times=free)
    session = asked(engine, PROMPT, 12)
    stream = engine.join(session)
    engine.append(session, stream, chain(LAST, TEXT[:1]))
    model.during = lambda: engine.append(session, stream, chain(LAST, TEXT[:6], first=1))
    engine.step()
    model.during = None
    now = engine.progress(session, len(PROMPT), stream)
    assert (now.tokens, now.known, now.held) == (tuple(TEXT[:2]), 1, 4)
    engine.step()
    assert text_of(session) == TEXT[:7]  # what came meanwhile lived on


# --- ends


def test_a_prompt_that_ends_in_a_stop_id_does_not_end_its_text() -> None:
    engine, *_ = exact_engine()
    prompts = ([1, 2, last] for last in range(3, 100))
    prompt = next(one for one in prompts if one[-1] not in own_text(one, 12))
    session = opened(engine, prompt)
    engine.decode(session, Decode(len(prompt) + 12, frozenset({prompt[-1]})))
    run_dry(engine)
    assert text_of(session) == own_text(prompt, 12)


def test_a_text_ends_at_its_sequences_limit_and_no_further_can_be_asked() -> None:
    engine, _, _ = exact_engine(sequence_length=10)
    session = asked(engine, PROMPT, 7)
    run_dry(engine)
    assert (text_of(session), session.end) == (TEXT[:7], End.LIMIT)
    assert_refused(lambda: engine.decode(session, Decode(11)), ["11", "10"], LimitExceeded)
    assert_refused(lambda: engine.open([1] * 6, GREEDY, limit=6), ["6"], LimitExceeded)


# --- credit and pace


def test_a_target_is_ahead_of_its_client_by_the_credit_and_goes_on_when_it_has_read() -> None:
    engine, _, _ = exact_engine(times=free)
    session = asked(engine, PROMPT, 60, credit=10)
    engine.append(session, engine.join(session), chain(LAST, TEXT[:30]))
    run_dry(engine)
    assert text_of(session) == TEXT[:10]
    assert session.end is End.NOT
    engine.acknowledge(session, len(PROMPT) + 4)
    run_dry(engine)
    assert text_of(session) == TEXT[:14]
    engine.acknowledge(session, len(PROMPT) + 1)  # late: what was said stands
    assert session.acknowledged == len(PROMPT) + 4
    assert_refused(lambda: engine.acknowledge(session, session.length + 1), ["18", "17"])
    engine.acknowledge(session, session.length)
    finish(engine, session)
    assert text_of(session) == TEXT[:60]


@pytest.mark.parametrize(
    ("seconds", "credit"), [(0.5, MIN_CREDIT), (0.010, 200), (0.0001, MAX_CREDIT)]
)
def test_credit_of_its_own_follows_the_pace_within_bounds(seconds: float, credit: int) -> None:
    engine, _, _ = exact_engine(cost=lambda rows, nodes: seconds)
    session = asked(engine, PROMPT, 1400, credit=0)
    assert session.credit == MIN_CREDIT
    for _ in range(100):
        engine.step()
        engine.acknowledge(session, session.length)
    assert session.credit == pytest.approx(credit, rel=0.02)
    before = session.length
    run_dry(engine)
    assert session.length - before <= MAX_CREDIT


def test_nobody_buys_more_credit_than_there_is() -> None:
    engine, _, _ = exact_engine()
    session = asked(engine, PROMPT, 1400, credit=10**9)
    run_dry(engine)
    assert len(text_of(session)) == MAX_CREDIT


def test_a_go_that_is_said_again_during_its_forward_makes_no_other() -> None:
    engine, model, _ = exact_engine()
    session = asked(engine, PROMPT, 30, pace=Pace.WAIT)
    model.during = lambda: engine.go(session, LAST)
    engine.go(session, LAST)
    run_dry(engine)
    assert text_of(session) == TEXT[:1]


def test_only_waiting_for_the_target_counts_as_waiting() -> None:
    engine, model, clock = exact_engine(rows=2)
    going, waiting = asked(engine, PROMPT, 60, credit=3), asked(engine, PROMPT, 9, pace=Pace.WAIT)
    run_dry(engine)
    before = going.spent.queue_seconds  # of the other's prompt
    for _ in range(3):
        clock.now += 100.0  # the client thinks
        engine.acknowledge(going, going.length)
        engine.go(waiting, waiting.length - 1)
        run_dry(engine)
    assert (going.spent.queue_seconds, waiting.spent.queue_seconds) == (before, 0.0)
    engine.acknowledge(going, going.length)
    model.during = lambda: engine.go(waiting, waiting.length - 1)
    engine.step()
    model.during = None
    clock.now += 0.005
    engine.step()
    assert waiting.spent.queue_seconds == pytest.approx(0.005)


# --- shares and fairness


def test_the_shares_of_a_forward_add_up_and_grow_with_a_sessions_nodes() -> None:
    def cost(rows: int, nodes: int) -> float:
        return 0.010 + 0.00001 * nodes

    engine, _, clock = exact_engine(rows=2, cost=cost, times=cost)
    wide, narrow = together(engine, [PROMPT, PROMPT], 30)
    began = clock.now
    engine.append(wide, engine.join(wide), chain(LAST, TEXT[:9]))
    engine.step()
    assert wide.spent.nodes > narrow.spent.nodes == 1
    assert wide.spent.model_seconds > wide.spent.share_seconds > narrow.spent.share_seconds > 0.004
    run_dry(engine)
    shares = wide.spent.share_seconds + narrow.spent.share_seconds
    assert shares == pytest.approx(clock.now - began)


class Device(NamedTuple):
    """Seconds of its forwards, and sizes that they are padded to."""

    cost: Cost
    sizes: tuple[int, ...] = ()

    def engine(self, times: Cost, clock: Clock | None = None) -> tuple[Engine, Exact, Clock]:
        """With four rows. times: what it believes that forwards take"""
        return exact_engine(4, cost=self.cost, sizes=self.sizes, times=times, clock=clock)


CPU = Device(lambda rows, nodes: 0.004 + 0.018 * rows * nodes)
NEURON = Device(
    lambda rows, nodes: 0.040 if nodes <= 1 else 0.065 if nodes <= 16 else 0.120, (1, 16, 32)
)


def ready(
    engine: Engine, tenants: Sequence[str], tokens: int = 1200
) -> list[tuple[Session, ProposalStream, list[int]]]:
    """A session for each, its stream of proposals, and the text that it will have."""
    made = []
    for number, tenant in enumerate(tenants):
        session = opened(engine, prompt_of(number), tenant=tenant)
        made.append((session, engine.join(session), own_text(prompt_of(number), tokens)))
    for session, _, _ in made:
        engine.decode(session, Decode(session.length + tokens, credit=512))
    return made


LEARNING = 10.0
"""Tokens that a session may lose, once, while what the engine believed of times is set right."""


def lies(session: Session, text: list[int], first: int) -> Nodes:
    """Sixteen nodes that are never taken, each said to be certain."""
    root = session.length - 1
    return Nodes(root, first, [0] * 16, range(990, 974, -1), [1.0] * 16)


def truth(session: Session, text: list[int], first: int) -> Nodes:
    ahead = text[len(text_of(session)) :][:15]
    return chain(session.length - 1, ahead, 0.9, first)


def live_on(
    engine: Engine,
    everybody: Sequence[tuple[Session, ProposalStream, list[int]]],
    turns: int,
    say: Callable[[Session, list[int], int], Nodes] | None,
) -> None:
    first, stream, text = everybody[0]
    for turn in range(turns):
        if say is not None:
            engine.append(first, stream, say(first, text, 16 * turn))
        engine.step()
        for session, _, _ in everybody:
            engine.acknowledge(session, session.length)


@pytest.mark.covering(2)
@pytest.mark.parametrize("device", [CPU, NEURON], ids=["cpu", "neuron"])
@pytest.mark.parametrize("say", [lies, truth])
@pytest.mark.parametrize(
    ("narrow", "wide"), [(1.0, 1.0), (1.0, 0.5), (1.0, 2.0), (0.5, 1.0), (2.0, 1.0)]
)
def test_who_claims_certainty_or_is_always_right_slows_down_nobody(
    device: Device,
    say: Callable[[Session, list[int], int], Nodes],
    narrow: float,
    wide: float,
) -> None:
    """Not even if what the engine believed of times to begin with was wrong by 2."""

    def wrong(rows: int, nodes: int) -> float:
        return device.cost(rows, nodes) * (wide if nodes > 1 else narrow)

    engine, _, clock = device.engine(wrong)
    everybody, began = ready(engine, ["first", "a", "b", "c"]), clock.now
    live_on(engine, everybody, 400, say)
    alone = (clock.now - began) / device.cost(4, 1)
    learning = 0.0 if narrow == wide else LEARNING
    for session, _, text in everybody:
        assert text_of(session) == text[: len(text_of(session))]
        assert len(text_of(session)) >= TUNING.min_rate * alone - TUNING.max_deficit - learning


def test_the_engines_own_work_slows_down_nobody_who_drafts_nothing() -> None:
    """Beside one with good candidates, where that work takes twice as long as the forwards."""

    def alone_and_beside(proposing: bool) -> tuple[float, int]:
        engine, _, clock = NEURON.engine(NEURON.cost, WorkingClock(0.020))
        everybody, began = ready(engine, ["wide", "a", "b", "c"]), clock.now
        live_on(engine, everybody, 300, truth if proposing else None)
        return clock.now - began, min(len(text_of(session)) for session, _, _ in everybody[1:])

    alone, tokens = alone_and_beside(False)
    seconds, beside = alone_and_beside(True)
    assert seconds > alone, "some forwards were wide"
    assert beside >= TUNING.min_rate * tokens * seconds / alone - TUNING.max_deficit


def test_good_candidates_pay_on_a_device_whose_wide_forwards_are_dear() -> None:
    engine, _, clock = NEURON.engine(NEURON.cost)
    everybody, began = ready(engine, ["a", "b", "c", "d"], 600), clock.now
    numbers = 0
    while any(session.end is End.NOT for session, _, _ in everybody):
        for session, stream, text in everybody:
            engine.append(session, stream, truth(session, text, numbers))
            engine.acknowledge(session, session.length)
        numbers += 15
        engine.step()
    assert 600 / ((clock.now - began) / NEURON.cost(4, 1)) > 4


def test_a_candidate_that_the_target_takes_counts_in_the_sessions_own_record() -> None:
    engine, _, _ = exact_engine(times=free)
    right, wrong = asked(engine, PROMPT, 12), asked(engine, PROMPT, 12)
    engine.append(right, engine.join(right), chain(LAST, TEXT[:5]))
    engine.append(wrong, engine.join(wrong), chain(LAST, [TEXT[0] - 1, 1, 1, 1, 1]))
    engine.step()
    assert right.length == len(PROMPT) + 6
    assert right.record.factor == 1.0 > wrong.record.factor


# --- rows


def test_a_session_starts_from_the_row_that_an_earlier_one_of_its_tenant_left() -> None:
    """Or from a copy of one that another session of the tenant still has."""
    engine, model, _ = exact_engine(rows=4)
    prompt = prompt_of(5, 100)
    engine.close(opened(engine, prompt, tenant="a"))
    assert opened(engine, prompt, tenant="b").reused == 0
    sessions = [asked(engine, [*prompt, last], 15, SAMPLINGS[1], tenant="a") for last in (9, 8)]
    assert [session.reused for session in sessions] == [99, 100]
    assert model.calls[-1] == (1, 1)
    assert opened(engine, prompt, tenant="c").reused == 0
    run_dry(engine)
    for session in sessions:
        assert text_of(session) == own_text(session.tokens[:101], 15, SAMPLINGS[1])


def test_the_row_unused_for_longest_is_given_away() -> None:
    engine, _, _ = exact_engine(rows=3)
    for number in range(3):
        engine.close(opened(engine, prompt_of(number, 60)))
    engine.close(opened(engine, prompt_of(0, 60)))  # 0 is used again: 1 is the oldest now
    opened(engine, prompt_of(9, 60))
    assert [opened(engine, prompt_of(number, 60)).reused for number in (2, 0)] == [59, 59]


def evictions_of(engine: Engine) -> list[Session]:
    """Sessions that lose their rows from now on."""
    evicted = list[Session]()

    def note(event: EngineEvent) -> None:
        if isinstance(event, Evicted):
            evicted.append(event.session)

    engine.listeners.append(note)
    return evicted


def test_a_session_out_of_credit_lends_its_row_at_once_and_goes_on_with_its_prefix() -> None:
    engine, model, _ = exact_engine(rows=1)
    first = asked(engine, prompt_of(6, 40), 12, credit=3)
    stream = engine.join(first)
    run_dry(engine)
    evicted = evictions_of(engine)
    second = asked(engine, prompt_of(8, 40), 12)
    run_dry(engine)
    engine.append(first, stream, chain(first.length - 1, own_text(prompt_of(6, 40), 9)[3:]))
    engine.acknowledge(first, first.length)
    engine.close(second)
    finish(engine, first)
    assert text_of(first) == own_text(prompt_of(6, 40), 12)
    assert text_of(second) == own_text(prompt_of(8, 40), 12)
    assert evicted == [first]
    assert model.rows == 1


def test_a_silent_session_lends_its_row_after_a_while() -> None:
    engine, _, clock = exact_engine(rows=1)
    silent = asked(engine, prompt_of(6, 40), 3)
    run_dry(engine)
    waiting, future = engine.open(prompt_of(8, 40), GREEDY)
    clock.now += TUNING.silent_seconds - 1
    run_dry(engine)
    assert not future.done()
    clock.now += 1.1
    run_dry(engine)
    assert future.done()
    assert (silent.row, waiting.row is None) == (None, False)


def test_a_tenant_with_many_sessions_does_not_shut_out_another() -> None:
    """All of them decode without end; rows go by turns, and nobody's prefix is computed anew."""
    engine, _, clock = exact_engine(rows=2)
    many = [asked(engine, prompt_of(number, 50), 1300, tenant="many") for number in range(2)]
    for number in range(2, 6):
        engine.decode(engine.open(prompt_of(number, 50), GREEDY, tenant="many")[0], Decode(1350))
    few, future = engine.open(prompt_of(9, 50), GREEDY, tenant="few")
    engine.decode(few, Decode(1000, credit=500))
    began = clock.now
    while not future.done():
        assert engine.step()
        for session in many:
            engine.acknowledge(session, session.length)
    assert clock.now - began < TUNING.turn_seconds + 0.2
    before = len(text_of(few))
    for _ in range(900):
        engine.step()
        for session in engine.sessions:
            engine.acknowledge(session, session.length)
    assert len(text_of(few)) - before == 900  # a row of its own: the other key has two
    for session in engine.sessions:
        text = own_text(session.tokens[: session.prompt_length], len(text_of(session)))
        assert text_of(session) == text


def test_sessions_of_one_tenant_wait_for_each_other() -> None:
    engine, _, clock = exact_engine(rows=1)
    first = asked(engine, prompt_of(1), 1200, tenant="a")
    _, future = engine.open(prompt_of(2), GREEDY, tenant="a")
    for _ in range(700):
        engine.step()
        engine.acknowledge(first, first.length)
    assert clock.now > 1000 + 3 * TUNING.turn_seconds
    assert not future.done()


def test_rows_change_hands_once_a_turn_and_every_text_goes_on_where_it_was() -> None:
    engine, _, clock = exact_engine(rows=2)
    sessions = [
        engine.open(prompt_of(number, 60), GREEDY, tenant=tenant)[0]
        for number, tenant in enumerate("abca")
    ]
    for session in sessions:
        engine.decode(session, Decode(460, credit=512))
    evicted, began = evictions_of(engine), clock.now
    while any(session.end is End.NOT for session in sessions):
        if not engine.step():
            clock.now += 0.1
        for session in engine.sessions:
            engine.acknowledge(session, session.length)
            if session.end is not End.NOT:
                engine.close(session)
    assert 0 < len(evicted) <= (clock.now - began) / TUNING.turn_seconds + 1
    assert [text_of(session) for session in sessions] == [
        own_text(prompt_of(number, 60), 400) for number in range(4)
    ]


def test_a_session_waits_until_a_silent_one_lends_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.engine.admission.TUNING", replace(TUNING, silent_seconds=0.05))
    engine = Engine(Exact(1, Clock()), sequence_length=100, max_tree_nodes=8, vocabulary=VOCABULARY)
    opened(engine, PROMPT)
    assert text_of(opened(engine, [4, 5])) == []


def test_a_full_line_is_busy_and_a_freed_row_goes_to_who_waited_longest() -> None:
    engine, _, _ = exact_engine(rows=1, waiting=2)
    first = opened(engine, [1])
    (_, second), (_, third) = engine.open([2], GREEDY), engine.open([3], GREEDY)
    assert_refused(lambda: engine.open([4], GREEDY), ["1 sessions", "2 are queued"], Busy)
    assert not engine.step()
    engine.close(first)
    engine.step()
    assert (second.done(), third.done()) == (True, False)


# --- faults and endings


def test_a_fault_ends_the_session_or_the_opening_it_is_in_and_no_other() -> None:
    engine, _, _ = exact_engine(rows=3, times=free)
    sessions = together(engine, [[1, 2, number] for number in (10, 20, 30)], 10)
    woken = threading.Event()
    engine.append(sessions[1], engine.join(sessions[1]), chain(2, [FAULTY]))
    engine.listen(engine.join(sessions[1]), woken.set)
    run_dry(engine)
    assert [text_of(session) for session in (sessions[0], sessions[2])] == [
        own_text([1, 2, number], 10) for number in (10, 30)
    ]
    assert woken.is_set()
    assert engine.free_rows == 1
    _, opening = engine.open([1, FAULTY, 2], GREEDY)
    run_dry(engine)
    for ask in (
        lambda: engine.progress(sessions[1], sessions[1].length),
        lambda: engine.decode(sessions[1], Decode(20)),
        lambda: engine.go(sessions[1], 2),
        lambda: opening.result(0),
    ):
        with pytest.raises(RuntimeError, match="a private reason"):
            ask()
    assert engine.free_rows == 1


def test_an_engine_that_stops_leaves_nobody_waiting() -> None:
    engine, _, _ = exact_engine(rows=1)
    with running(engine):
        holding = opened(engine, PROMPT)
        _, future = engine.open([5], GREEDY)
    with pytest.raises(Unavailable, match="stopped"):
        future.result(0)
    with pytest.raises(Unavailable, match="stopped"):
        engine.progress(holding, holding.length)


def test_a_forward_is_told_of_while_the_next_one_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, model, _ = exact_engine()
    session, choose = opened(engine, PROMPT), model.choose
    told, ended, heard = threading.Event(), threading.Event(), list[bool]()

    def note_end() -> None:
        if session.end is not End.NOT:
            ended.set()

    def choosing(segments: Sequence[Segment]) -> list[Chosen]:
        if session.length > len(PROMPT):
            heard.append(told.wait(WAIT))
        return choose(segments)

    monkeypatch.setattr(model, "choose", choosing)
    engine.listeners.append(lambda event: told.set() if isinstance(event, Commit) else None)
    engine.decode(session, Decode(session.length + 3))
    engine.listen(engine.join(session), note_end)
    with running(engine):
        assert ended.wait(WAIT)
    assert heard == [True, True]


def test_a_limit_is_lowered_before_a_forward_pass_is_planned_or_after_it_is_prepared() -> None:
    engine, model, _ = exact_engine(1, times=free)
    session, threads = asked(engine, PROMPT, 9), list[threading.Thread]()
    while session.made < 3:
        engine.step()
    padded = model.padded

    def planning(rows: int, nodes: int) -> tuple[int, int]:
        if not threads:
            lower = partial(engine.set_limits, session, None, session.length)
            threads.append(threading.Thread(target=lower))
            threads[0].start()
            threads[0].join(0.1)  # it has to wait
        return padded(rows, nodes)

    model.padded = planning  # type: ignore[method-assign]
    engine.step()
    threads[0].join()
    assert session.made == 4
    assert session.limit == len(PROMPT) + 3
