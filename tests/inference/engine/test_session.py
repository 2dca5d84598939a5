"""A session's own books: its record of candidates, and what it is ahead."""

from __future__ import annotations

from inference.engine.tuning import TUNING
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


def test_what_a_session_is_ahead_or_behind_is_bounded() -> None:
    engine, _, _ = exact_engine()
    session = opened(engine, PROMPT)
    session.add_service(-100.0)
    assert session.service_credit == -TUNING.most_behind
    session.add_service(100.0)
    assert session.service_credit == TUNING.most_ahead
