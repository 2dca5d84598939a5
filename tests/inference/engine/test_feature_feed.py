"""Features on their way to a client: within its bytes a second, within bounded memory, and only of
what the session has committed.
"""

from __future__ import annotations

import numpy as np
import pytest

from inference.backends.eager import EagerModel
from inference.backends.sequence import ModelSequence
from inference.engine.feature_feed import MESSAGE_BYTES, MOST_WAITING, FeatureFeed, FeatureOffer
from inference.errors import Mismatch
from inference.features import FeatureForm, FeatureRequest, from_int8
from inference.sampling import SamplingParams
from inference.tree import IntArray
from tests.support import heads, pairs

TARGET = pairs.decoder(1)
FORM = FeatureForm(heads.KEPT, TARGET.config.hidden_size)
EACH, PLENTY = FORM.position_bytes, 10**9
TEXT = pairs.prompt_of(60)


class Row:
    """A target's row with a text on it, and a feed of it."""

    def __init__(self, first: int = 0, rate: int = PLENTY) -> None:
        self.model = EagerModel(TARGET, rows=1, capacity=200, max_nodes=64)
        self.model.keep_features(FORM.layers)
        self.sequence = ModelSequence(self.model, 0, SamplingParams())
        offer = FeatureOffer(self.model, FORM, PLENTY)
        self.feed = offer.feed(FeatureRequest(FORM, first, rate), 0.0)

    def makes(self, tokens: int) -> None:
        length = self.sequence.length
        self.sequence.extend(TEXT[length : length + tokens])
        self.feed.collect(self.sequence)


def taken(feed: FeatureFeed, below: int = 999, now: float = 0.0) -> list[int]:
    """Positions of all that may be sent."""
    positions = list[int]()
    while (block := feed.take(below, now)) is not None:
        positions += range(block.position, block.position + len(block.values))
    return positions


def test_features_are_those_that_the_target_computed_and_are_sent_once() -> None:
    row = Row()
    row.makes(10)
    block = row.feed.take(999, 0.0)
    assert block is not None
    states = heads.states_of(TARGET, TEXT[:10]).numpy()
    assert np.abs(from_int8(block.scales, block.values) - states).max() < np.abs(states).max() / 200
    assert taken(row.feed) == []
    row.makes(3)
    assert taken(row.feed) == [10, 11, 12]


def test_they_begin_where_the_client_asks() -> None:
    row = Row(first=12)
    row.makes(10)
    assert taken(row.feed) == []
    row.makes(10)
    assert taken(row.feed) == list(range(12, 20))


def test_those_of_tokens_that_the_client_has_not_yet_wait() -> None:
    row = Row()
    row.makes(10)
    assert taken(row.feed, below=4) == [0, 1, 2, 3]
    assert taken(row.feed, below=4) == []
    assert taken(row.feed, below=10) == list(range(4, 10))


def test_no_more_bytes_are_sent_than_were_asked_for() -> None:
    row = Row(rate=4 * EACH)
    row.makes(20)
    assert taken(row.feed) == [0, 1, 2, 3]
    assert taken(row.feed, now=0.5) == [4, 5]
    assert taken(row.feed, now=60.0) == [6, 7, 8, 9]


def test_a_message_holds_few_so_that_tokens_wait_for_little() -> None:
    row = Row()
    row.makes(60)
    block = row.feed.take(999, 0.0)
    assert block is not None
    assert len(block.values) == min(MESSAGE_BYTES // EACH, 60)


def test_what_finds_no_room_is_left_out_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.engine.feature_feed.MOST_WAITING", 8 * EACH)
    row = Row()
    row.makes(6)
    row.makes(6)
    assert taken(row.feed) == list(range(4, 12))
    row.makes(30)
    assert taken(row.feed) == list(range(34, 42))
    assert MOST_WAITING <= 2**20


def test_a_row_that_is_filled_again_is_not_sent_twice() -> None:
    row = Row()
    row.makes(10)
    assert taken(row.feed) == list(range(10))
    row.sequence = ModelSequence(row.model, 0, SamplingParams())
    for _ in range(4):
        row.makes(4)
    assert taken(row.feed) == list(range(10, 16))


class Broken(EagerModel):
    """Keeps no numbers, such as a target that overflows."""

    def features(self, row: int, slots: IntArray):  # type: ignore[no-untyped-def]
        return super().features(row, slots) * float("nan")


def test_what_is_no_number_at_the_target_is_sent_as_0() -> None:
    row = Row()
    row.model.__class__ = Broken
    row.makes(3)
    block = row.feed.take(999, 0.0)
    assert block is not None
    assert not block.values.any()
    assert np.isfinite(block.scales).all()


def test_other_features_than_these_are_refused() -> None:
    model = EagerModel(TARGET, rows=1, capacity=200, max_nodes=64)
    asked = FeatureRequest(FORM._replace(layers=(1,)), 0, PLENTY)
    with pytest.raises(Mismatch, match=r"gives inputs of layers 0, 1, 2, 32 .* of layers 1, "):
        FeatureOffer(model, FORM, PLENTY).feed(asked, 0.0)


def test_a_target_sends_no_faster_than_its_operator_lets_it() -> None:
    row = Row()
    feed = FeatureOffer(row.model, FORM, 2 * EACH).feed(FeatureRequest(FORM, 0, PLENTY), 0.0)
    row.makes(9)
    feed.collect(row.sequence)
    assert taken(feed) == [0, 1]
