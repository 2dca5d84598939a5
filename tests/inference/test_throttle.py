"""Beside a target on its own machine, a draft makes calls only while its text loses little."""

from __future__ import annotations

import random

import pytest

from inference.draft_tuning import TUNING
from inference.throttle import Baseline, Throttle


class Text:
    """Silent forwards take 1 second. slower, tokens: of a forward while the draft works"""

    def __init__(self, slower: float, tokens: float, quiet: Baseline | None = None) -> None:
        self.throttle = Throttle(Baseline() if quiet is None else quiet)
        self.slower, self.tokens, self.pace = slower, tokens, 1.0
        self.seconds, self.made, self.silent = 0.0, 0, 0
        self._chance = random.Random(1)

    def forward(self) -> None:
        allowed = self.throttle.allows
        whole = int(self.tokens)
        drafted = whole + (self._chance.random() < self.tokens - whole)
        took, tokens = (self.pace * self.slower, drafted) if allowed else (self.pace, 1)
        self.throttle.observe(took, tokens, 1, lone=tokens == 1, silent=not allowed)
        self.seconds, self.made = self.seconds + took, self.made + tokens
        self.silent += not allowed


@pytest.mark.parametrize("slower", [1.05, 1.3, 2.0, 10.0])
def test_a_useless_draft_costs_a_text_two_percent_and_a_few_tokens(slower: float) -> None:
    text = Text(slower, 1.0)
    for _ in range(1000):
        text.forward()
        lost = text.seconds - text.made
        assert lost <= TUNING.loan + TUNING.loss * text.made + slower


def test_a_draft_that_pays_is_silent_only_to_time_the_target() -> None:
    text = Text(1.3, 2.5)
    while text.made < 4 * TUNING.retimed:
        text.forward()
    assert text.silent == 3 * 4
    assert text.made / text.seconds > 1.85


def test_what_one_text_has_timed_serves_the_next() -> None:
    quiet = Baseline()
    for _ in range(3):
        Text(1.0, 1.0, quiet).forward()
    assert not Text(1.0, 1.0).throttle.allows
    assert Text(1.0, 1.0, quiet).throttle.allows


def test_a_machine_that_has_slowed_down_is_no_fault_of_the_draft() -> None:
    text = Text(1.1, 2.0)
    for _ in range(100):
        text.forward()
    text.pace = 3.0
    for _ in range(60):
        text.forward()
    silent = text.silent
    for _ in range(200):
        text.forward()
    assert text.silent - silent <= 3


def test_a_neighbour_during_the_silence_gives_the_draft_no_credit() -> None:
    quiet = Baseline()
    disturbed = Text(1.0, 1.0, quiet)
    disturbed.pace = 2.0
    for _ in range(3):
        disturbed.forward()
    text = Text(1.3, 1.0, quiet)  # the neighbour has left, and each call costs this text 0.3
    for _ in range(60):
        text.forward()
    assert text.seconds - text.made <= TUNING.loan + TUNING.loss * text.made + 4 * 1.3


def test_a_useless_draft_costs_many_texts_their_loan_once() -> None:
    quiet, lost = Baseline(), 0.0
    for _ in range(20):
        text = Text(1.6, 1.0, quiet)
        for _ in range(48):
            text.forward()
        lost += text.seconds - text.made
    assert lost <= TUNING.loan + TUNING.loss * 20 * 48 + 1.6


def test_gains_of_one_text_pay_for_the_next_ones_prompt() -> None:
    quiet = Baseline()
    for _ in range(30):
        Text(1.0, 1.0, quiet).forward()
    good = Text(1.3, 2.5, quiet)
    for _ in range(50):
        good.forward()
    prompt = Text(2.0, 1.0, quiet)  # nothing comes of the draft while it is fed
    for _ in range(4):
        prompt.forward()
    assert prompt.silent == 0


def test_a_noisy_pace_forgives_no_loss() -> None:
    text, chance = Text(2.0, 1.0), random.Random(2)
    for _ in range(400):
        text.pace = chance.choice([0.8, 1.0, 1.3])
        text.forward()
    alone = 400 * (0.8 + 1.0 + 1.3) / 3
    assert text.seconds / alone < 1 / 0.96


def test_a_useless_draft_is_silent_until_the_loan_that_it_lost_is_earned_back() -> None:
    text, works = Text(2.0, 1.0), list[bool]()
    for _ in range(300):
        works.append(text.throttle.allows)
        text.forward()
    first = works.index(True)
    silent = works.index(False, first)
    again = works.index(True, silent)
    assert again - silent >= TUNING.loan / TUNING.loss


def test_a_draft_gets_a_dozen_slow_passes_in_a_row_before_it_is_given_up() -> None:
    text, beside = Text(1.5, 1.0), 0
    while beside < 12 and text.made < 2000:
        beside = beside + 1 if text.throttle.allows else 0
        text.forward()
    assert beside == 12
