"""A client measures for how long a target has owed it a token."""

from __future__ import annotations

import pytest

from grpc_comm.client.patience import MAX_QUEUE_SECONDS, Patience, ProgressClock
from tests.support.clock import Clock

BORNE = Patience(30.0)


def test_only_seconds_in_which_a_token_is_owed_count() -> None:
    at = Clock(0.0)
    clock = ProgressClock(BORNE, at)
    clock.note_opened()
    at.now = 2 * BORNE.progress
    assert not clock.advance(at.now, owes_token=False, opened=True)
    at.now += BORNE.progress
    assert not clock.advance(at.now, owes_token=True, opened=True)
    clock.restart()
    at.now += BORNE.progress + 1
    said = clock.advance(at.now, owes_token=True, opened=True)
    assert said == f"has generated no token for {BORNE.progress:.0f} s"
    assert clock.stalled


def test_a_target_that_says_nothing_is_left_though_it_owes_no_token() -> None:
    at = Clock(BORNE.silence)
    clock = ProgressClock(BORNE, at)
    assert not clock.advance(0.0, owes_token=False, opened=True)
    assert "sent nothing for" in clock.advance(-0.1, owes_token=False, opened=True)


def test_a_target_that_was_left_has_its_time_of_silence_again() -> None:
    at = Clock(0.0)
    clock = ProgressClock(BORNE, at)
    at.now = BORNE.progress + 1
    assert clock.advance(at.now, owes_token=True, opened=True)
    at.now += BORNE.silence
    assert not clock.advance(at.now, owes_token=True, opened=True)
    at.now += 1
    assert clock.advance(at.now, owes_token=True, opened=True)
    clock.restart()
    assert not clock.stalled


@pytest.mark.parametrize("evicted", [False, True])
def test_a_line_may_be_long_and_who_comes_out_of_it_is_not_late(evicted: bool) -> None:
    at = Clock(0.0)
    clock = ProgressClock(BORNE, at)
    clock.evicted = evicted
    at.now = MAX_QUEUE_SECONDS
    assert not clock.advance(at.now, owes_token=True, opened=evicted)
    clock.note_opened()
    assert not clock.advance(at.now, owes_token=True, opened=True)
    at.now += BORNE.silence + 1
    assert clock.advance(at.now, owes_token=True, opened=True)


def test_the_clock_of_progress_is_slower_than_a_step_of_any_target() -> None:
    assert Patience(0.001).progress >= 60
    assert Patience().progress == 10 * Patience().silence
