"""A target that talks without making tokens is left; one that has a reason is waited for."""

from __future__ import annotations

import pytest

from grpc_comm.client import connection, patience
from grpc_comm.client.patience import LONGEST_LINE, Patience, ProgressClock
from grpc_comm.proto import verifier_pb2 as pb
from inference.errors import OutriderError
from tests.support.clock import Clock
from tests.support.rogue_target import OPENED, asked, tokens
from tests.support.wire_fixtures import until_it_fails

AWAY = pb.ServerMessage(go_away=pb.GoAway(reason="maintenance"))
TALK = {
    "signs of life before the session is open": ([], [tokens(3)]),
    "signs of life": ([OPENED], [tokens(3)]),
    "one token, then signs of life": ([OPENED, tokens(3, 4)], [tokens(4)]),
    "that it waits for an acknowledgement": ([OPENED], [tokens(3, end=pb.Tokens.CREDIT)]),
    "that the session has no row": ([OPENED], [tokens(3, end=pb.Tokens.EVICTED)]),
    "that the session is open": ([], [OPENED]),
    "that it drains": ([OPENED], [AWAY, tokens(3)]),
    "that it drains, and no sign of life": ([OPENED], [AWAY]),
    "that it has drained": ([OPENED, AWAY, tokens(3, end=pb.Tokens.DRAINED)], [AWAY]),
}


@pytest.mark.parametrize("seconds", [0.0, 0.5])
@pytest.mark.parametrize("said", TALK)
def test_a_target_that_talks_for_ever_is_left(
    said: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEARTBEAT_SECONDS", 0.02)
    for name in ("SHORTEST_SILENCE", "LONGEST_SILENCE", "LEAST_PROGRESS", "LONGEST_LINE"):
        monkeypatch.setattr(patience, name, 0.3)
    monkeypatch.setattr(patience, "SILENCES", 1)
    answers, forever = TALK[said]
    with asked(answers, forever, Patience(seconds)) as session:
        if "has drained" in said and not seconds:
            return  # the text ends there
        with pytest.raises(OutriderError):
            until_it_fails(session)


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
