"""What is decided within a round: calls and nodes are paid for by the tokens that they bring, time only while somebody waits for it."""

from __future__ import annotations

from inference.acceptance import read_acceptance
from inference.objective import Effort
from inference.pilot import SILENT_ROUNDS, Knowledge, Pilot
from inference.stats import Traffic
from inference.times import DraftTimes, LinkTimes, TargetTimes


class Hand:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def pilot(
    call: float = 0.01, verify: float = 0.04, round_trip: float = 0.1, price: float = 0.05
) -> tuple[Pilot, Hand]:
    """Of a draft whose calls take so long, and a token that costs `price` seconds lately."""
    known = Knowledge(
        DraftTimes({1: call, 32: call}),
        TargetTimes({(1, 64): verify}),
        LinkTimes(),
        read_acceptance(),
    )
    for _ in range(5):
        known.link.observe(round_trip, 0.0, 100)
    clock = Hand()
    made = Pilot(known, clock=clock)
    made.expect(1.0, Effort(price))
    return made, clock


def test_the_draft_is_called_as_long_as_its_guesses_are_worth_the_time() -> None:
    assert pilot(call=0.01)[0].width([1.0], 0.0) == 1
    assert pilot(call=0.2)[0].width([1.0], 0.0) == 0
    assert pilot(call=0.01)[0].width([0.05], 0.0) == 0


def test_time_is_free_until_the_verdict_is_expected() -> None:
    steering, clock = pilot(call=0.06, price=0.05)
    assert steering.width([0.3], 0.0) == 0
    steering.sent(8)
    assert steering.width([0.3], 0.0) == 1
    clock.now = 0.139  # it is nearly there: the call would end long after it
    assert steering.width([0.3], 0.0) == 0


def test_a_draft_that_is_never_worth_calling_is_tried_now_and_then() -> None:
    steering, _ = pilot(call=0.2)
    traffic = Traffic()
    steering.begin(traffic)
    calls = 0
    for _ in range(3 * SILENT_ROUNDS):
        width = steering.width([1.0], 0.0)
        calls += width
        if width:
            steering.called(width, 0.2)
        steering.sent(1)
        steering.arrived(traffic, 1, 1, goes_on=False)
    assert 1 <= calls <= 3


def test_a_draft_that_became_quick_again_is_noticed() -> None:
    steering, _ = pilot(call=0.01)
    for _ in range(20):
        steering.called(1, 0.5)
    assert steering.width([1.0], 0.0) == 0
    for _ in range(20):
        steering.called(1, 0.01)
    assert steering.width([1.0], 0.0) == 1


def test_nodes_are_sent_that_are_worth_what_they_cost() -> None:
    steering, _ = pilot()
    assert steering.size([0.9, 0.5, 0.1]) == 3  # the target computes 64 nodes as quickly as one
    steering.known.target = TargetTimes({(1, 1): 0.04, (1, 2): 0.05, (1, 3): 0.06, (1, 4): 0.07})
    assert steering.size([0.9, 0.5, 0.1]) == 2


def test_nothing_is_sent_ahead_when_it_would_save_little() -> None:
    steering, clock = pilot(round_trip=0.3)
    steering.sent(8)
    assert not steering.sends_onward(0.9, 4.0)  # the target is not done with the one before
    clock.now = 0.1
    assert steering.sends_onward(0.9, 4.0)
    assert not steering.sends_onward(0.01, 4.0)
    assert not steering.sends_onward(0.9, 1.1)
    steering.onward = False
    assert not steering.sends_onward(0.9, 4.0)
