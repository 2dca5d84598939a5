"""A client's copy of a text takes what a target may report, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference.errors import Mismatch
from inference.order import Decode, End, Pace, Progress, TokenLogProb
from inference.proposer import NOBODY
from inference.sampling import SamplingParams
from inference.text_log import MAX_UNREAD, TextCopy, Traffic
from tests.support.wire_fixtures import progress

PROMPT = [1, 2, 3]


def text(
    end: int = 10, stop_ids: frozenset[int] = frozenset(), likeliest: int | None = None
) -> TextCopy:
    received = TextCopy(PROMPT, SamplingParams(logprobs=likeliest), 100, Traffic())
    received.set_order(Decode(end, stop_ids))
    return received


def test_what_comes_is_read_once_and_in_one_piece_over_all_sessions() -> None:
    traffic = Traffic()
    received = TextCopy(PROMPT, SamplingParams(), 100, traffic)
    received.set_order(Decode(10))
    assert received.read() is None
    received.take(progress(3, 4, 5, proposers=(0, NOBODY), nodes=8, forwards=3))
    received.begin_session()
    received.take(progress(5, 6, nodes=2, forwards=1))
    read = received.read()
    assert read is not None
    assert (read.position, read.tokens, read.proposers) == (3, (4, 5, 6), (0, NOBODY, NOBODY))
    assert (read.nodes, read.forwards, received.latest.nodes) == (10, 4, 2)
    assert received.read() is None
    received.take(progress(6, nodes=3, forwards=2))
    alive = received.read()
    assert alive is not None
    assert (alive.position, alive.tokens, alive.nodes, alive.forwards) == (6, (), 1, 1)
    assert (traffic.nodes, traffic.forwards, traffic.model_seconds) == (11, 5, 2.0)


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
    received = text(20, likeliest=1)
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
        (1, replace(scored(3, 4, 5), logprobs=scored(3, 4).logprobs)),
        (1, replace(scored(3, 4), logprobs=(TokenLogProb(-1.0, (100,), (-1.0,)),))),
    ],
)
def test_log_probabilities_that_nobody_asked_for_or_that_are_left_out_are_a_mismatch(
    asked: int | None, came: Progress
) -> None:
    received = text(likeliest=asked)
    with pytest.raises(Mismatch, match="log-probabilit"):
        received.take(came)
    assert received.tokens == PROMPT


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (progress(6, 7), "omitted tokens 5 to 5"),
        (progress(2**32 - 1, 7), str(2**32 - 2)),
        (progress(4, 6), "contradicts itself"),
        (progress(0, 2), "contradicts itself"),
        (progress(3, 4, 6, 7), "contradicts itself"),
        (progress(5, 100), "100"),
        (progress(5, *range(6, 12)), "11 .* 10 "),
        (progress(5, 50, 6), "stop id"),
        (progress(5, 6, nodes=4), "backwards"),
        (progress(5, 6, forwards=1), "backwards"),
        (progress(5, 6, model_seconds=0.5), "backwards"),
    ],
)
def test_what_no_target_says_is_a_mismatch_and_changes_nothing(said: Progress, words: str) -> None:
    received = text(stop_ids=frozenset({50}))
    received.take(progress(3, 4, 5))
    with pytest.raises(Mismatch, match=words):
        received.take(said)
    assert received.tokens == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("end", [End.STOP_ID, End.MAX_TOKENS, End.LIMIT])
def test_nothing_comes_after_an_end(end: End) -> None:
    received = text(5, stop_ids=frozenset({5}))
    received.take(progress(3, 4, 5, end=end))
    assert received.end is end
    received.take(progress(5, end=end))
    received.set_order(Decode(9))
    received.take(progress(5, 6))
    received.take(progress(6, end=End.LIMIT))
    with pytest.raises(Mismatch, match="after the end"):
        received.take(progress(6, 7))


@pytest.mark.parametrize("end", [End.CREDIT, End.EVICTED, End.STOP_ID, End.MAX_TOKENS])
def test_a_pause_or_the_end_of_an_earlier_order_is_no_end(end: End) -> None:
    """Nor is a stop id in the prompt."""
    received = text(stop_ids=frozenset({3}))
    for came in (progress(3, end=end), progress(3, 4, end=end)):
        received.take(came)
        assert received.end is End.NOT


def test_nothing_is_owed_without_an_order_or_a_reason_to_go_on() -> None:
    received = TextCopy(PROMPT, SamplingParams(), 9_999, Traffic())
    assert not received.owes_token
    for order, requested, owed in (
        (Decode(3), 0, False),
        (Decode(5_000, pace=Pace.WAIT), 0, False),
        (Decode(5_000, pace=Pace.WAIT), 3, True),
        (Decode(5_000), 0, True),
    ):
        received.set_order(order)
        received.requested = requested
        assert received.owes_token == owed
    received.take(progress(3, *range(MAX_UNREAD + 1)))
    assert received.is_behind
    assert not received.owes_token
    received.read()
    assert received.owes_token
    received.take(progress(4 + MAX_UNREAD, end=End.LIMIT))
    assert not received.owes_token
