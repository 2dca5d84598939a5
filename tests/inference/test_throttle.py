"""Beside a target on its own machine, a draft makes calls only while its text loses little."""

from __future__ import annotations

import random

import pytest

from inference.loop.draft_tuning import TUNING
from inference.loop.throttle import Baseline, Throttle
from inference.times import LATEST, TRUSTED


class Text:
    """Silent forwards take 1 second. slower, tokens: of a forward while the draft works"""

    def __init__(self, slower: float, tokens: float, quiet: Baseline | None = None) -> None:
        self.throttle = Throttle(Baseline() if quiet is None else quiet)
        self.slower, self.tokens, self.pace = slower, tokens, 1.0
        self.seconds, self.made, self.silent = 0.0, 0, 0
        self._chance = random.Random(1)

    def forward(self, count: int = 1) -> None:
        for _ in range(count):
            allowed = self.throttle.allows
            whole = int(self.tokens)
            drafted = whole + (self._chance.random() < self.tokens - whole)
            took, tokens = (self.pace * self.slower, drafted) if allowed else (self.pace, 1)
            self.throttle.observe(took, tokens, 1, lone=tokens == 1, silent=not allowed)
            self.seconds, self.made = self.seconds + took, self.made + tokens
            self.silent += not allowed


@pytest.mark.parametrize("slower", [1.05, 1.3, 2.0, 10.0])
def test_a_useless_draft_costs_two_percent_and_many_texts_their_loan_once(slower: float) -> None:
    text = Text(slower, 1.0)
    for _ in range(1000):
        text.forward()
        lost = text.seconds - text.made
        assert lost <= TUNING.loan + LOSS * text.made + slower
    quiet, lost = Baseline(), 0.0
    for _ in range(20):
        text = Text(slower, 1.0, quiet)
        text.forward(48)
        lost += text.seconds - text.made
    assert lost <= TUNING.loan + LOSS * 20 * 48 + slower


def test_a_draft_that_pays_is_silent_only_to_time_the_target() -> None:
    text = Text(1.3, 2.5)
    while text.made < 4 * TUNING.retimed:
        text.forward()
    assert text.silent == 3 * 4
    assert text.made / text.seconds > 1.85
    slowed = Text(1.1, 2.0)
    slowed.forward(100)
    slowed.pace = 3.0  # which is no fault of the draft
    slowed.forward(60)
    silent = slowed.silent
    slowed.forward(200)
    assert slowed.silent - silent <= 3


def test_a_neighbour_during_the_silence_gives_the_draft_no_credit() -> None:
    quiet = Baseline()
    disturbed = Text(1.0, 1.0, quiet)
    disturbed.pace = 2.0
    disturbed.forward(3)
    text = Text(1.3, 1.0, quiet)  # the neighbour has left, and each call costs this text 0.3
    text.forward(60)
    assert text.seconds - text.made <= TUNING.loan + LOSS * text.made + 4 * 1.3


LOSS = TUNING.loss


def silence(passes: int = TRUSTED) -> Baseline:
    """After so many passes of 1 second, each of which saves LOSS tokens."""
    quiet = Baseline()
    quiet.count(5, 100.0)  # before anything was timed: it counts nothing
    for _ in range(passes):
        quiet.time(1.0)
    return quiet


def paused(quiet: Baseline) -> int:
    """Passes of 1 second until the draft is tried again."""
    for passes in range(10_000):
        if not quiet.owes:
            return passes
        quiet.time(1.0)
    raise AssertionError("it is never tried again")


def test_texts_are_ahead_by_their_tokens_less_the_time_that_they_took() -> None:
    quiet = silence()
    assert quiet.ahead == pytest.approx(TRUSTED * LOSS)
    quiet.count(3, 4.0)
    assert quiet.ahead == pytest.approx(TRUSTED * LOSS + 3 * (1 + LOSS) - 4)
    quiet.count(100, 10.0)
    assert quiet.ahead == TUNING.max_ahead
    for _ in range(10):
        quiet.count(0, 19.0)
    assert quiet.ahead == -TUNING.loan - TUNING.max_behind
    timed_again = silence()
    timed_again.count(3, 4.0)
    timed_again.seconds.clear()
    timed_again.time(0.5)  # which judges nothing alone
    assert not timed_again.owes
    assert timed_again.ahead == pytest.approx(TRUSTED * LOSS)


def test_tokens_are_settled_by_the_speed_of_the_silence_behind_them() -> None:
    quiet = silence(LATEST)
    for count, pace in ((2, 2.0), (3, 0.5)):
        for _ in range(2):
            quiet.count(count, 2.0)
        for _ in range(LATEST):
            quiet.time(pace)
    gained = (2 + 2 - 4.0 / 2.0) + (3 + 3 - 4.0 / 0.5)
    assert quiet.ahead == pytest.approx((3 * LATEST + 10) * LOSS + gained)


def test_a_draft_that_loses_its_loan_again_is_paused_for_longer_up_to_a_bound() -> None:
    quiet, pauses = silence(), list[int]()
    for _ in range(5):
        quiet.count(0, 2 * TUNING.loan + max(quiet.ahead, 0.0))
        pauses.append(paused(quiet))
    saved = [2 * TUNING.loan + more for more in (0, 1, 3, TUNING.max_ahead, TUNING.max_ahead)]
    assert pauses == pytest.approx([tokens / LOSS for tokens in saved], abs=2)
    after_a_pause_of_the_machine = silence()
    after_a_pause_of_the_machine.count(1, 10_000.0)
    expected = pytest.approx(TUNING.max_lost / LOSS, abs=TUNING.loan / LOSS)
    assert paused(after_a_pause_of_the_machine) == expected


def test_a_draft_works_until_tokens_enough_have_come_and_for_all_of_them() -> None:
    throttle = Throttle(silence())
    for step in range(TUNING.retimed):
        assert throttle.allows, step
        throttle.observe(1.0, 1, 1, lone=False, silent=False)
    assert not throttle.allows
    throttle.observe(1.0, 1, 1, lone=True, silent=True)
    throttle.observe(9.0, 9, 9, lone=False, silent=True)  # candidates that were under way
    throttle.observe(1.0, 1, 1, lone=True, silent=True)
    assert not throttle.allows
    throttle.observe(1.0, 1, 1, lone=True, silent=True)
    assert throttle.allows
    quiet = Baseline()
    for forwards in (4, 2, 0):  # a pace is that of each of a report's passes
        Throttle(quiet).observe(4.0, 4, forwards, lone=True, silent=True)
    assert [*quiet.seconds] == [1.0, 2.0, 4.0]
