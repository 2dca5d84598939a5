"""Orders of arrival and neighbours that benchmarks/equal_texts.py and benchmarks/alone.py play."""

from __future__ import annotations

import pytest

from benchmarks.alone import BARE, PROMPT, bare, served, table
from benchmarks.equal_texts import Job, Pair, ahead, alone, beside, share
from benchmarks.regret.stage import serve
from inference.backends.eager import EagerModel
from inference.draft_tuning import TUNING
from inference.engine.local_session import LocalSession
from inference.sampling import SamplingParams
from tests.support import pairs

TOKENS = 24
JOBS = [
    Job(tuple(range(3 + number, 20)), SamplingParams(0.8, seed=number).on_the_wire(), 20 + TOKENS)
    for number in range(5)
]


def model(rows: int, seed: int = 1) -> EagerModel:
    capacity = pairs.SEQUENCE_LENGTH + TUNING.room
    return EagerModel(pairs.decoder(seed), rows=rows, capacity=capacity, max_nodes=256)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return Pair(model(4), model(1), pairs.VOCABULARY, frozenset())


@pytest.mark.parametrize("order", range(3))
def test_in_float32_no_order_of_arrival_changes_a_text(pair: Pair, order: int) -> None:
    assert ahead(pair, JOBS[0], order) == alone(pair, JOBS[0])


def test_in_float32_sessions_beside_it_change_no_text(pair: Pair) -> None:
    assert beside(pair, JOBS, 0) == [alone(pair, job) for job in JOBS]


def test_a_share_counts_texts_and_says_where_they_differ() -> None:
    counted = share([(1, 2), (1, 3), (1, 2, 3)], [(1, 2), (1, 2), (1, 2)])
    assert counted == (3, (1, 2))
    assert str(counted) == "1 of 3 (0.333), the others for 1.5 tokens (median)"


def test_the_bare_loop_and_a_session_make_equally_many_tokens() -> None:
    target = model(1)
    assert sum(bare(target, TOKENS)) == TOKENS
    assert sum(served(LocalSession(serve(target, pairs.VOCABULARY)), TOKENS)) == TOKENS
    assert len(PROMPT) + TOKENS < pairs.SEQUENCE_LENGTH


def test_speeds_are_by_pairs_of_one_turn() -> None:
    *_, row = table({BARE: [0.01, 0.02], "session": [0.02, 0.02]})
    assert row == "| session | 20.00 | 0.7071 | 0.500, 1.000 |"
