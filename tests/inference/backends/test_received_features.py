"""Features as they come: which are asked for, when a head may begin, and what they cost."""

from __future__ import annotations

import numpy as np
import pytest

from inference.backends.received_features import TEXTS_WITHOUT, WINDOW_SECONDS, ReceivedFeatures
from inference.errors import Mismatch
from inference.features import FeatureBlock, FeatureForm
from tests.support.clock import Clock

FORM = FeatureForm((1, 2), 4)
EACH, PLENTY = FORM.position_bytes, 10**9


def block(position: int, count: int = 1) -> FeatureBlock:
    values = np.arange(count * 8, dtype=np.int8).reshape(count, 2, 4)
    return FeatureBlock(position, np.full((count, 2), 0.5, dtype=np.float32), values)


def begun(length: int, rate: int = PLENTY, window: int = 8, clock: Clock | None = None):  # type: ignore[no-untyped-def]
    features = ReceivedFeatures(FORM, 100, rate, window=window, clock=clock or Clock())
    features.begin(length)
    return features


def first(features: ReceivedFeatures) -> int:
    assert features.request is not None
    return features.request.first


def test_the_last_positions_of_a_prompt_are_asked_for_without_its_root() -> None:
    assert [first(begun(length)) for length in (1, 5, 9, 10, 50)] == [0, 0, 0, 1, 41]


def test_fewer_are_asked_for_where_the_budget_holds_fewer() -> None:
    rate = round(3 * EACH / WINDOW_SECONDS)
    assert first(begun(50, rate)) == 46
    assert first(begun(50, 1)) == 48


def test_fewer_are_asked_for_on_a_link_that_was_slow() -> None:
    clock = Clock()
    features = begun(50, clock=clock)
    for position in range(41, 49):
        clock.now += WINDOW_SECONDS / 2
        features.take(block(position))
    assert features.seconds == pytest.approx(WINDOW_SECONDS / 2)
    features.begin(50)
    assert first(features) == 47


def test_a_head_may_begin_when_those_of_the_prompts_end_are_there() -> None:
    features = begun(6)
    assert not features.ready
    features.take(block(0, 4))
    assert not features.ready
    features.take(block(4))
    assert features.ready
    assert features.known == range(5)
    assert features.at(np.array([0, 4])).tolist() == [
        [0.5 * number for number in range(8)],
        [0.5 * number for number in range(8)],
    ]


def test_behind_a_gap_the_known_ones_begin_anew() -> None:
    features = begun(6)
    features.take(block(0, 5))
    features.take(block(8, 2))
    assert features.known == range(8, 10)
    assert first(features) == 10


def test_what_was_sent_before_is_refused() -> None:
    features = begun(6)
    features.take(block(0, 5))
    with pytest.raises(Mismatch, match="position 4 twice"):
        features.take(block(4))
    assert features.known == range(5)


def test_of_a_text_longer_than_the_head_drafts_for_no_more_are_wanted() -> None:
    features = begun(6)
    features.take(block(0, 5))
    assert not features.take(block(99, 2))
    assert not features.ready
    features.begin(101)
    request = features.request
    assert request is not None
    assert request.bytes_per_second == 0


def test_who_gave_them_up_asks_for_none_in_the_next_texts_and_then_again() -> None:
    features = begun(6)
    features.take(block(0, 5))
    features.give_up()
    assert (features.ready, features.take(block(5))) == (False, False)
    asked = []
    for _ in range(TEXTS_WITHOUT + 1):
        request = features.request
        assert request is not None
        asked.append(request.bytes_per_second)
        features.begin(6)
    assert asked == [0] * (TEXTS_WITHOUT + 1)
    assert features.request is not None
    assert features.request.bytes_per_second == PLENTY


def test_without_a_budget_nothing_is_asked() -> None:
    assert begun(6, rate=0).request is None
