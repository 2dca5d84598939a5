"""A session's own books: its record of candidates, its rate limit, and what it is ahead."""

from __future__ import annotations

import pytest

from inference.engine.tuning import TUNING
from inference.order import Decode
from tests.support.exact import asked, chain, exact_engine, free, opened, own_text

PROMPT = [1, 2, 3]
TEXT = own_text(PROMPT, 20)


def test_a_candidate_that_the_target_takes_counts_in_the_sessions_own_record() -> None:
    engine, _, _ = exact_engine(times=free)
    right, wrong = asked(engine, PROMPT, 12), asked(engine, PROMPT, 12)
    engine.append(right, engine.join(right), chain(2, TEXT[:5]))
    engine.append(wrong, engine.join(wrong), chain(2, [TEXT[0] - 1, 1, 1, 1, 1]))
    engine.step()
    assert right.length == len(PROMPT) + 6
    assert right.record.factor == 1.0 > wrong.record.factor


def test_a_limit_of_tokens_a_second_counts_every_token_of_a_forward() -> None:
    engine, _, clock = exact_engine(times=free)
    session = opened(engine, PROMPT)
    engine.decode(session, Decode(len(PROMPT) + 12, credit=512, tokens_per_second=2.0))
    engine.append(session, engine.join(session), chain(2, TEXT[:5]))
    engine.step()
    assert session.length == len(PROMPT) + 6
    assert session.seconds_until_allowed(clock()) == pytest.approx(
        6 / 2.0 - 1
    )  # a second may come at once


def test_what_a_session_is_ahead_or_behind_is_bounded() -> None:
    engine, _, _ = exact_engine()
    session = opened(engine, PROMPT)
    session.add_service(-100.0)
    assert session.service_credit == -TUNING.most_behind
    session.add_service(100.0)
    assert session.service_credit == TUNING.most_ahead
