"""A head over a link is silent without features. It gives up those that cost more than they
save.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from inference.backends import Ranked, Segment
from inference.backends.received_features import ReceivedFeatures
from inference.candidates import Nodes
from inference.cost.objective import Effort, Tariff
from inference.drafters.copy_source import CopySource
from inference.drafters.led_proposer import JUDGED_AFTER, LedProposer
from inference.features import FeatureBlock, FeatureForm
from inference.planner.prices import Prices
from inference.proposer import COPY, Notice
from inference.sampling import SamplingParams
from tests.support.clock import Clock
from tests.support.drafts import knowledge
from tests.support.scripted_models import ScriptedModel, useless

FORM = FeatureForm((1,), 996)
PROMPT = [7, 3, 9, 7, 3]
FORWARD = 0.01


class Blind(ScriptedModel):
    """Names the same tokens whatever it sees. seen: the last call."""

    seen: Segment

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        (self.seen,) = segments
        ids = np.tile(np.arange(k, dtype=np.int32), (len(self.seen.pick), 1))
        return [Ranked(ids, np.full(ids.shape, -2.0, dtype=np.float32))]


class Text:
    """A text of a target on a head that computes nothing of worth, with features message by
    message.
    """

    def __init__(self, prices: Prices | None = None, source: CopySource | None = None) -> None:
        self.clock, self.length = Clock(), len(PROMPT)
        self.features = ReceivedFeatures(FORM, 500, 10**9, clock=self.clock)
        self.features.begin(self.length)
        self.model = Blind(useless, rows=1, capacity=2_000)
        self.proposer = LedProposer(
            self.model, 0, knowledge(), prices or Prices(),
            features=self.features, source=source, clock=self.clock,
        )  # fmt: skip
        self.proposer.open(PROMPT, SamplingParams(), 500)

    def comes(self, position: int, seconds: float = 0.0) -> None:
        """Features of a position, so long after the last message."""
        self.clock.now += seconds
        values = np.zeros((1, 1, FORM.hidden), dtype=np.int8)
        self.features.take(FeatureBlock(position, np.zeros((1, 1), dtype=np.float32), values))

    def prompt_comes(self, seconds: float = 0.0) -> None:
        for position in range(self.length - 1):
            self.comes(position, seconds)

    def hears(self, tokens: Sequence[int]) -> None:
        self.clock.now += FORWARD
        notice = Notice(self.clock.now, FORWARD, 0, 0, 16)
        self.proposer.hear(self.length, tokens, self.clock.now, notice)
        self.length += len(tokens)

    def sent(self) -> list[Nodes]:
        numbers, nodes = iter(range(1_000)), list[Nodes]()
        while (one := self.proposer.flush(self.clock.now, lambda: next(numbers))) is not None:
            nodes.append(one)
        return nodes


def test_without_the_prompts_features_the_model_is_silent_and_copies_go_on() -> None:
    text = Text(source=CopySource())
    assert not text.proposer.work(0.0)
    assert {one.proposer for one in text.sent()} == {COPY}
    text.prompt_comes()
    assert text.proposer.work(0.0)
    assert text.model.seen.led is not None
    assert text.model.seen.led.known == range(4)
    assert text.model.seen.positions[:4].tolist() == [1, 2, 3, 4]


def test_features_that_come_in_no_time_are_kept_although_nothing_was_right() -> None:
    text = Text()
    text.prompt_comes()
    text.hears(range(JUDGED_AFTER + 1))
    assert text.features.ready


@pytest.mark.parametrize("seconds", [FORWARD / 10, 2 * FORWARD])
def test_features_that_take_longer_than_they_save_are_given_up(seconds: float) -> None:
    """No token was named here, so whatever they take is too long."""
    text = Text()
    text.prompt_comes(seconds)
    text.hears(range(JUDGED_AFTER - 1))
    assert text.features.ready
    text.hears([5])
    assert not text.features.ready
    assert not text.proposer.work(text.clock.now)
    request = text.features.request
    assert request is not None
    assert request.bytes_per_second == 0


def test_bytes_that_have_a_price_are_held_against_what_a_second_is_worth() -> None:
    prices = Prices(Tariff(1.0, byte_down=1e-6))
    assert prices.repays(Effort(bytes_down=1_000), FORWARD)
    assert not prices.repays(Effort(bytes_down=100_000), FORWARD)
    assert not prices.repays(Effort(0.02), FORWARD)
    text = Text(prices)
    text.prompt_comes()
    text.hears(range(JUDGED_AFTER))
    assert not text.features.ready
