"""A client believes what a target may say of its text, and measures how long it owes a token."""

from __future__ import annotations

import pytest

from grpc_comm.client.patience import LONGEST_LINE, Patience, ProgressClock
from grpc_comm.client.received import MOST_UNREAD, Received
from inference.errors import Mismatch
from inference.order import Decode, End, Pace, Progress, TokenLogProb
from inference.proposer import NOBODY
from inference.stats import Traffic
from tests.support.clock import Clock
from tests.support.wire_fixtures import progress

PROMPT = [1, 2, 3]


def text(most: int = 10, stop_ids: frozenset[int] = frozenset()) -> Received:
    received = Received(PROMPT, 100, Traffic())
    received.ask(most, stop_ids)
    return received


def test_what_comes_is_read_once_and_in_one_piece() -> None:
    received = text()
    assert received.read() is None
    received.take(progress(3, 4, 5, proposers=(0, NOBODY)))
    received.take(progress(5, 6))
    assert received.unread == 3
    read = received.read()
    assert read is not None
    assert (read.position, read.tokens, read.proposers) == (3, (4, 5, 6), (0, NOBODY, NOBODY))
    assert received.read() is None
    received.take(progress(6))
    assert received.read() == progress(6)


def test_tokens_that_are_there_already_are_passed_over() -> None:
    received = text()
    received.take(progress(3, 4, 5))
    received.take(progress(2, 3, 4, 5, 6, 7))
    received.take(progress(3, 4))
    assert received.tokens == [1, 2, 3, 4, 5, 6, 7]


def scored(position: int, *tokens: int, likeliest: int = 1) -> Progress:
    """Tokens, each with the log-probability -token, and those of the likeliest beside it."""
    values = [TokenLogProb(-t, (t,) * likeliest, (-t,) * likeliest) for t in tokens]
    return progress(position, *tokens, logprobs=tuple(values))


def test_log_probabilities_go_with_their_tokens_however_often_these_come() -> None:
    received = Received(PROMPT, 100, Traffic(), likeliest=1)
    received.ask(20, frozenset())
    received.take(scored(3, 4, 5))
    first = received.read()
    received.take(scored(3, 4, 5, 6))
    received.begin_session()
    received.take(scored(5, 6, 7, 8))
    second = received.read()
    assert first is not None
    assert second is not None
    assert [-one.value for one in first.logprobs] == [4, 5]
    assert (second.tokens, [-one.value for one in second.logprobs]) == ((6, 7, 8), [6, 7, 8])


@pytest.mark.parametrize(
    ("asked", "came"),
    [
        (None, scored(3, 4)),
        (0, progress(3, 4)),
        (0, scored(3, 4)),
        (1, scored(3, 4, likeliest=2)),
        (1, scored(3, 4)._replace(tokens=(4, 5))),
        (1, scored(3, 4)._replace(logprobs=(TokenLogProb(-1.0, (100,), (-1.0,)),))),
    ],
)
def test_log_probabilities_that_nobody_asked_for_or_that_are_left_out_are_a_mismatch(
    asked: int | None, came: Progress
) -> None:
    received = Received(PROMPT, 100, Traffic(), likeliest=asked)
    received.ask(10, frozenset())
    with pytest.raises(Mismatch, match="log-probabilit"):
        received.take(came)
    assert received.tokens == PROMPT


WRONG: dict[str, tuple[Progress, str]] = {
    "a gap": (progress(6, 7), "left out tokens 5 to 5"),
    "the greatest position": (progress(2**32 - 1, 7), "left out"),
    "another token than before": (progress(4, 6), "contradicts itself"),
    "another prompt": (progress(0, 2), "contradicts itself"),
    "a contradiction within what is new": (progress(3, 4, 6, 7), "contradicts itself"),
    "a token outside the vocabulary": (progress(5, 100), "outside its vocabulary of 100"),
    "more than was asked": (progress(5, *range(6, 12)), "made 11 tokens, 10 were asked"),
    "tokens behind a stop id": (progress(5, 50, 6), "went on behind a stop id"),
    "nodes that were not": (progress(5, 6, nodes=4), "backwards"),
    "a forward that was not": (progress(5, 6, forwards=1), "backwards"),
    "time that runs back": (progress(5, 6, model_seconds=0.5), "backwards"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_no_target_says_is_a_mismatch_and_changes_nothing(wrong: str) -> None:
    received = text(stop_ids=frozenset({50}))
    received.take(progress(3, 4, 5))
    said, words = WRONG[wrong]
    with pytest.raises(Mismatch, match=words):
        received.take(said)
    assert received.tokens == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("end", [End.STOP_ID, End.MAX_TOKENS, End.LIMIT])
def test_nothing_comes_after_an_end(end: End) -> None:
    received = text(most=5, stop_ids=frozenset({5}))
    received.take(progress(3, 4, 5, end=end))
    assert received.end is end
    received.take(progress(5, end=end))
    received.ask(9, frozenset())
    received.take(progress(5, 6))
    received.take(progress(6, end=End.LIMIT))
    with pytest.raises(Mismatch, match="after the end"):
        received.take(progress(6, 7))


def test_an_end_that_an_order_since_has_moved_is_none() -> None:
    received = text(most=4)
    received.take(progress(3, 4, end=End.MAX_TOKENS))
    received.ask(9, frozenset({8}))
    for late in (End.MAX_TOKENS, End.STOP_ID):
        received.take(progress(4, end=late))
        assert received.end is End.NOT


@pytest.mark.parametrize("end", [End.CREDIT, End.EVICTED, End.STOP_ID])
def test_a_session_that_stands_still_has_not_ended_nor_by_a_stop_id_of_its_prompt(end: End) -> None:
    received = text(stop_ids=frozenset({3}))
    received.take(progress(3, end=end))
    assert received.end is End.NOT


def test_sums_go_on_where_another_session_begins_anew() -> None:
    traffic = Traffic()
    received = Received(PROMPT, 100, traffic)
    received.ask(10, frozenset())
    received.take(progress(3, 4, nodes=8, forwards=3))
    received.begin_session()
    received.take(progress(4, 5, nodes=2, forwards=1))
    read = received.read()
    assert read is not None
    assert (read.nodes, read.forwards, received.session.nodes) == (10, 4, 2)
    assert (traffic.nodes, traffic.forwards, traffic.model_seconds) == (10, 4, 2.0)


def test_nothing_is_owed_without_an_order_or_a_reason_to_go_on() -> None:
    received = Received(PROMPT, 9_999, Traffic())
    assert not received.owes_token(None, 0)
    received.ask(5_000, frozenset())
    assert received.owes_token(Decode(5_000), 0)
    assert not received.owes_token(Decode(3), 0)
    assert not received.owes_token(Decode(5_000, pace=Pace.WAIT), 0)
    assert received.owes_token(Decode(5_000, pace=Pace.WAIT), 3)
    received.take(progress(3, *range(MOST_UNREAD + 1)))
    assert received.is_behind
    assert not received.owes_token(Decode(5_000), 0)
    received.read()
    assert received.owes_token(Decode(5_000), 0)
    received.take(progress(4 + MOST_UNREAD, end=End.LIMIT))
    assert not received.owes_token(Decode(5_000), 0)


BORNE = Patience(30.0)


def test_only_seconds_in_which_a_token_is_owed_count() -> None:
    at = Clock(0.0)
    clock = ProgressClock(BORNE, at)
    clock.note_opened()
    at.now = 2 * BORNE.progress
    assert not clock.advance(owes_token=False, opened=True)
    at.now += BORNE.progress
    assert not clock.advance(owes_token=True, opened=True)
    clock.restart()
    at.now += BORNE.progress + 1
    assert clock.advance(owes_token=True, opened=True) == BORNE.progress
    assert clock.stalled


def test_a_target_that_was_left_has_its_time_of_silence_again() -> None:
    at = Clock(0.0)
    clock = ProgressClock(BORNE, at)
    at.now = BORNE.progress + 1
    assert clock.advance(owes_token=True, opened=True)
    at.now += BORNE.silence
    assert not clock.advance(owes_token=True, opened=True)
    at.now += 1
    assert clock.advance(owes_token=True, opened=True)
    clock.restart()
    assert not clock.stalled


@pytest.mark.parametrize("evicted", [False, True])
def test_a_line_may_be_long_and_who_comes_out_of_it_is_not_late(evicted: bool) -> None:
    at = Clock(0.0)
    clock = ProgressClock(BORNE, at)
    clock.evicted = evicted
    at.now = LONGEST_LINE
    assert not clock.advance(owes_token=True, opened=evicted)
    clock.note_opened()
    assert not clock.advance(owes_token=True, opened=True)
    at.now += BORNE.silence + 1
    assert clock.advance(owes_token=True, opened=True)


def test_the_clock_of_progress_is_slower_than_a_step_of_any_target() -> None:
    assert Patience(0.001).progress >= 60
    assert Patience().progress == 10 * Patience().silence
