"""A target that talks without making tokens is left; one that has a reason is waited for."""

from __future__ import annotations

import pytest

from grpc_comm.client import connection, patience
from grpc_comm.client.connection import connect
from grpc_comm.client.patience import LONGEST_LINE, Patience, ProgressClock
from grpc_comm.client.received import MOST_UNREAD, Received
from grpc_comm.proto import verifier_pb2 as pb
from inference.errors import OutriderError
from inference.order import Decode, End, Pace, Progress
from inference.sampling import SamplingParams
from inference.stats import Traffic
from tests.support.rogue_target import OPENED, rogue, tokens
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
    with (
        rogue(answers, forever) as address,
        connect(str(address), patience=Patience(seconds)) as connected,
    ):
        session = connected.session()
        session.open([1, 2, 3], SamplingParams())
        session.decode(Decode(60))
        if "has drained" in said and not seconds:
            return  # the text ends there
        with pytest.raises(OutriderError):
            until_it_fails(session)


class At:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


BORNE = Patience(30.0)


def test_only_seconds_in_which_a_token_is_owed_count() -> None:
    at = At()
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
    at = At()
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
    at = At()
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


def came(position: int, *ids: int, end: End = End.NOT) -> Progress:
    return Progress(position, ids, (255,) * len(ids), 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0, 0, end)


def test_nothing_is_owed_without_an_order_or_a_reason_to_go_on() -> None:
    received = Received([1, 2, 3], 9_999, Traffic())
    assert not received.owes_token(None, 0)
    received.ask(5_000, frozenset())
    assert received.owes_token(Decode(5_000), 0)
    assert not received.owes_token(Decode(3), 0)
    assert not received.owes_token(Decode(5_000, pace=Pace.WAIT), 0)
    assert received.owes_token(Decode(5_000, pace=Pace.WAIT), 3)
    received.take(came(3, *range(MOST_UNREAD + 1)))
    assert received.is_behind
    assert not received.owes_token(Decode(5_000), 0)
    received.read()
    assert received.owes_token(Decode(5_000), 0)
    received.take(came(4 + MOST_UNREAD, end=End.LIMIT))
    assert not received.owes_token(Decode(5_000), 0)
