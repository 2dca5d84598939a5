"""Many sessions on one engine: what each gets is what it would get alone, whatever the others do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest

from inference import roster
from inference.accept import Verdict
from inference.backends import Segment
from inference.decode import decode
from inference.engine import Engine, Forward, Observer
from inference.errors import Busy, LimitExceeded, Mismatch, Unavailable
from inference.local import LocalVerifier
from inference.policy import BestFirst
from inference.sampling import SamplingParams
from inference.session import Answer, Opened, Session
from inference.tree import IntArray, TokenTree
from tests.pairs import VOCABULARY, decoder, drafter, engine
from tests.test_lossless import alone
from tests.wire_fixtures import FAULTY, WAIT, Successor, successor_engine

GREEDY = SamplingParams()
SAMPLINGS = [GREEDY, SamplingParams(0.7, seed=5), SamplingParams(1.0, seed=6)]


class Recorder(Observer):
    """What an engine did, in order."""

    def __init__(self) -> None:
        self.forwards: list[Forward] = []
        self.trees: list[int] = []
        self.reused: list[int] = []
        self.evictions = 0

    def forward(self, done: Forward) -> None:
        self.forwards.append(done)

    def opened(self, session: Session, opened: Opened) -> None:
        self.reused.append(opened.reused)

    def answered(self, session: Session, tree: TokenTree, answer: Answer) -> None:
        self.trees.append(len(tree))

    def evicted(self, session: Session) -> None:
        self.evictions += 1


def recorded(served: Engine) -> Recorder:
    served.observer = Recorder()
    return served.observer


@contextmanager
def running(served: Engine) -> Iterator[None]:
    """Its forwards are made by a thread, as in a server."""
    stopped = threading.Event()
    thread = threading.Thread(target=served.run, args=(stopped,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        served.stop(stopped)
        thread.join(WAIT)
        assert not thread.is_alive()


def open_(
    served: Engine, prompt: Sequence[int], params: SamplingParams = GREEDY, tenant: str = ""
) -> Session:
    session, future = served.open(prompt, params, tenant=tenant)
    served.finish(future)
    future.result(0)
    return session


def prompt_of(seed: int, length: int = 12) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).tolist()


def speculated(
    served: Engine, prompt: Sequence[int], params: SamplingParams, tokens: int, nodes: int = 8
) -> list[int]:
    verifier = LocalVerifier(served)
    draft = drafter(decoder(2), BestFirst(nodes=nodes, depth=3))
    try:
        return [
            token
            for step in decode(prompt, params, draft, verifier, tokens)
            for token in step.tokens
        ]
    finally:
        verifier.close()


def test_trees_of_all_ready_sessions_go_into_one_forward_and_each_gets_its_own_text() -> None:
    served = engine(decoder(1), rows=3)
    expected = [
        alone(LocalVerifier(served), prompt_of(number), params, 12)
        for number, params in enumerate(SAMPLINGS)
    ]
    sessions = [open_(served, prompt_of(number), params) for number, params in enumerate(SAMPLINGS)]
    seen, texts = recorded(served), [list[int]() for _ in sessions]
    while len(texts[0]) < 12:
        futures = [
            served.verify(session, TokenTree.chain([session.root, 1, 2])) for session in sessions
        ]
        assert served.step()
        for text, future in zip(texts, futures, strict=True):
            verdict = future.result(0).verdict
            text += [*([1, 2][: len(verdict.path)]), verdict.next_token]
    assert {done.rows for done in seen.forwards} == {3}
    assert [text[:12] for text in texts] == [
        text[: len(made)] for text, made in zip(expected, texts, strict=True)
    ]


def test_sessions_on_threads_of_their_own_get_the_texts_they_get_alone() -> None:
    served = engine(decoder(1), rows=4)
    expected = [
        alone(LocalVerifier(served), prompt_of(number), SAMPLINGS[number % 3], 20)
        for number in range(10)
    ]
    made: dict[int, list[int]] = {}

    def client(number: int) -> None:
        made[number] = speculated(served, prompt_of(number), SAMPLINGS[number % 3], 20)

    with running(served):
        clients = [threading.Thread(target=client, args=(number,)) for number in range(10)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join(WAIT)
    assert [made[number] for number in range(10)] == expected
    assert served.free_rows == 4


class Costly(Successor):
    """A forward takes 5 ms, and 2 ms a node."""

    def choose(self, segments: Sequence[Segment]) -> list[IntArray]:
        time.sleep(0.005 + 0.002 * len(segments) * max(len(segment.tokens) for segment in segments))
        return super().choose(segments)


def test_nodes_that_never_survive_are_cut_when_they_cost_and_the_client_is_told() -> None:
    served = Engine(Costly(2), sequence_length=4000, max_tree_nodes=32, vocabulary=4000)
    session, budgets = open_(served, [1, 2, 3]), []
    served.finish(
        served.generate(session, 5, frozenset(), lambda answer, last: None)
    )  # what one node costs is known
    seen = recorded(served)
    for _ in range(25):
        root = session.root
        junk = TokenTree(
            np.array([root, *range(root + 100, root + 115)]), np.array([-1] + [0] * 15)
        )
        future = served.verify(session, junk)
        served.finish(future)
        answer = future.result(0)
        assert answer.verdict == Verdict((), root + 1)
        budgets.append(answer.budget)
    assert seen.trees[0] == 16 > min(seen.trees)
    assert [budget for budget, nodes in zip(budgets, seen.trees, strict=True) if nodes < 16] == [
        nodes for nodes in seen.trees if nodes < 16
    ]


def test_a_forward_with_cut_trees_makes_the_same_text() -> None:
    served = engine(decoder(1))
    expected = alone(LocalVerifier(served), prompt_of(7), SAMPLINGS[2], 40)
    session, text = open_(served, prompt_of(7), SAMPLINGS[2]), list[int]()
    while len(text) < 40:
        ahead = expected[len(text) : len(text) + 5]
        future = served.verify(session, TokenTree.chain([session.root, *ahead]))
        session.work.tree = session.next_tree(3)  # type: ignore[union-attr]  # as a scheduler that cuts would have it
        served.finish(future)
        verdict = future.result(0).verdict
        text += [*ahead[: len(verdict.path)], verdict.next_token]
    assert text[:40] == expected


def test_prompts_and_trees_take_turns() -> None:
    served = engine(decoder(1), rows=2, max_tree_nodes=16)
    decoding = open_(served, prompt_of(1))
    seen = recorded(served)
    _, filled = served.open(prompt_of(2, 200), GREEDY)
    rounds = 0
    while not filled.done():
        future = served.verify(decoding, TokenTree.chain([decoding.root]))
        while not future.done():
            served.step()
        rounds += 1
    kinds = [done.prefill for done in seen.forwards]
    assert rounds >= 12
    assert not any(first and second for first, second in pairwise(kinds))


@pytest.mark.parametrize("params", SAMPLINGS, ids=str)
def test_a_session_starts_from_the_row_that_an_earlier_one_left(params: SamplingParams) -> None:
    served, prompt = engine(decoder(1), rows=2), prompt_of(3, 100)
    expected = alone(LocalVerifier(engine(decoder(1))), [*prompt, 9], params, 15)
    first = open_(served, prompt, params)
    served.close(first)
    seen = recorded(served)
    assert alone(LocalVerifier(served), [*prompt, 9], params, 15) == expected
    assert seen.reused == [99]
    assert sum(done.nodes for done in seen.forwards if done.prefill) == 1


@pytest.mark.parametrize("params", SAMPLINGS, ids=str)
def test_a_session_starts_from_a_copy_of_a_busy_row_and_the_other_goes_on(
    params: SamplingParams,
) -> None:
    served, prompt = engine(decoder(1), rows=2), prompt_of(4, 100)
    asked = [(prompt, GREEDY), ([*prompt[:80], 9, 8], params)]
    expected = [
        alone(LocalVerifier(engine(decoder(1))), text, sampling, 10) for text, sampling in asked
    ]
    busy = LocalVerifier(served)
    busy.open(prompt, GREEDY).result()
    tokens = busy.generate(10, frozenset())
    made = [next(tokens) for _ in range(4)]
    seen = recorded(served)
    assert alone(LocalVerifier(served), [*prompt[:80], 9, 8], params, 10) == expected[1]
    assert seen.reused == [80]
    assert [*made, *tokens] == expected[0]


def test_a_tenant_never_starts_from_anothers_tokens() -> None:
    served, prompt = engine(decoder(1), rows=2), prompt_of(5, 100)
    served.close(open_(served, prompt, tenant="a"))
    seen = recorded(served)
    open_(served, prompt, tenant="b")
    open_(served, prompt, tenant="a")
    assert seen.reused == [0, 99]


def test_the_row_unused_for_longest_is_given_away() -> None:
    served = engine(decoder(1), rows=3)
    for number in range(3):
        served.close(open_(served, prompt_of(number, 60)))
    served.close(open_(served, prompt_of(0, 60)))  # 0 is used again: 1 is the oldest now
    open_(served, prompt_of(9, 60))
    seen = recorded(served)
    open_(served, prompt_of(2, 60))
    open_(served, prompt_of(0, 60))
    assert seen.reused == [59, 59]


def test_a_silent_session_lends_its_row_and_goes_on_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "SILENT_SECONDS", 0.0)
    served, prompts = engine(decoder(1), rows=1), [prompt_of(6, 40), prompt_of(8, 40)]
    expected = [alone(LocalVerifier(served), prompt, SAMPLINGS[1], 12) for prompt in prompts]
    seen = recorded(served)
    verifiers = [LocalVerifier(served), LocalVerifier(served)]
    texts: list[list[int]] = [[], []]
    for verifier, prompt in zip(verifiers, prompts, strict=True):
        verifier.open(prompt, SAMPLINGS[1]).result()
    for _ in range(4):
        for verifier, text in zip(verifiers, texts, strict=True):
            text += list(verifier.generate(3, frozenset()))
    assert texts == expected
    assert seen.evictions >= 7


def test_a_fault_ends_the_session_it_is_in_and_no_other() -> None:
    served = successor_engine(rows=3)
    sessions = [open_(served, [1, 2, number]) for number in (10, 20, 30)]
    futures = [
        served.verify(session, TokenTree.chain([session.root, guess]))
        for session, guess in zip(sessions, (11, FAULTY, 31), strict=True)
    ]
    served.step()
    assert [futures[0].result(0).verdict, futures[2].result(0).verdict] == [
        Verdict((1,), 12),
        Verdict((1,), 32),
    ]
    with pytest.raises(RuntimeError, match="a private reason"):
        futures[1].result(0)
    served.step()
    assert served.free_rows == 1
    with pytest.raises(RuntimeError, match="a private reason"):
        served.verify(sessions[1], TokenTree.chain([20]))


def test_a_session_closed_in_a_forward_leaves_the_others_alone() -> None:
    served = successor_engine(rows=2)
    assert isinstance(served.model, Successor)
    leaving, staying = open_(served, [1, 2, 10]), open_(served, [1, 2, 20])
    with running(served):
        served.model.entered.clear()
        served.model.gate.clear()
        futures = [
            served.verify(session, TokenTree.chain([session.root]))
            for session in (leaving, staying)
        ]
        assert served.model.entered.wait(WAIT)
        served.close(leaving)
        assert served.free_rows == 0
        served.model.gate.set()
        assert futures[1].result(WAIT).verdict == Verdict((), 21)
        assert served.verify(staying, TokenTree.chain([21])).result(WAIT).verdict == Verdict((), 22)
        assert served.free_rows == 1
        with pytest.raises(Unavailable):
            served.verify(leaving, TokenTree.chain([leaving.root]))


def test_a_full_line_is_busy_and_a_freed_row_goes_to_who_waited_longest() -> None:
    served = successor_engine(rows=1, waiting=2)
    first = open_(served, [1])
    (_, second), (_, third) = served.open([2], GREEDY), served.open([3], GREEDY)
    with pytest.raises(Busy, match="1 sessions are served and 2 wait"):
        served.open([4], GREEDY)
    assert not served.step()
    served.close(first)
    served.step()
    assert (second.done(), third.done()) == (True, False)


def test_what_is_taken_back_is_made_again() -> None:
    served, params = engine(decoder(1)), SAMPLINGS[2]
    expected = alone(LocalVerifier(served), prompt_of(11), params, 12)
    session, tokens = open_(served, prompt_of(11), params), list[int]()
    done = served.generate(
        session, 8, frozenset(), lambda answer, last: tokens.append(answer.verdict.next_token)
    )
    served.finish(done)
    served.rewind(session, 12 + 3)
    with pytest.raises(Mismatch, match="12 were its prompt"):
        served.rewind(session, 11)
    del tokens[3:]
    done = served.generate(
        session, 9, frozenset(), lambda answer, last: tokens.append(answer.verdict.next_token)
    )
    served.finish(done)
    assert tokens == expected


def test_a_session_answers_one_request_at_a_time_and_stays_within_its_limit() -> None:
    served = successor_engine()
    session, opened = served.open([1, 2, 3], GREEDY, limit=6)
    served.finish(opened)
    served.verify(session, TokenTree.chain([3]))
    with pytest.raises(Mismatch, match="one at a time"):
        served.verify(session, TokenTree.chain([3]))
    served.step()
    with pytest.raises(
        LimitExceeded, match="4 committed tokens and 3 new ones do not fit the sequence length of 6"
    ):
        served.generate(session, 3, frozenset(), lambda answer, last: None)
    with pytest.raises(LimitExceeded, match="leaves no room: the sequence length is 6"):
        served.open([1] * 6, GREEDY, limit=6)


def test_a_lonely_session_is_never_waited_for() -> None:
    served = Engine(Costly(2), sequence_length=4000, max_tree_nodes=32, vocabulary=4000)
    session = open_(served, [1, 2, 3])
    for _ in range(5):
        future = served.verify(session, TokenTree.chain([session.root, session.root + 1]))
        assert served._turns.pause(served._roster, time.perf_counter()) == 0.0
        served.finish(future)
