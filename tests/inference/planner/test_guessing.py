"""Chances of what masks name: they fall along a surprising path, are learnt, and can be kept."""

from __future__ import annotations

import json

import numpy as np
import pytest

from inference.errors import InvalidRequest
from inference.json_file import Json
from inference.planner.acceptance import features, read_acceptance
from inference.planner.guessing import OFFSETS, Guessing, guess_features, said_by

SCORES = np.array([[-0.3, -2.0, -3.0, -4.0]], dtype=np.float32)
SAID = said_by(features(SCORES, [0], True)[0])


@pytest.fixture
def guessing() -> Guessing:
    return read_acceptance().guessing


def test_a_row_of_chances_adds_up_to_less_than_one(guessing: Guessing) -> None:
    for path in (0.0, 2.0, 50.0):
        chances = guessing.chances(guess_features(SAID, 1, path, None), True)
        assert len(chances) == 4
        assert 0 < min(chances) <= sum(chances) < 1


@pytest.mark.parametrize("greedy", [False, True])
def test_a_mask_is_worth_less_behind_a_surprising_path(guessing: Guessing, greedy: bool) -> None:
    likely, surprising = (
        guessing.chances(guess_features(SAID, 1, path, None), greedy) for path in (0.1, 4.0)
    )
    assert surprising[0] < likely[0]


def test_what_masks_are_worth_is_learnt_for_each_kind_of_decoding(guessing: Guessing) -> None:
    table = guess_features(SAID, 2, 0.5, None)
    (before, *_), sampled = guessing.chances(table, True), guessing.chances(table, False)
    rate = guessing.rate(2)
    for _ in range(200):
        guessing.observe(table, True, 2, None)
    assert guessing.chances(table, True)[0] < 0.1 < before
    assert guessing.chances(table, False) == sampled
    assert guessing.rate(2) < 0.1 < rate
    for _ in range(300):
        guessing.observe(table, True, 2, 0)
    assert guessing.chances(table, True)[0] > 0.8
    assert guessing.rate(2) > 0.7


def test_a_later_mask_than_any_that_is_counted_has_the_last_ones_rate(guessing: Guessing) -> None:
    assert guessing.rate(OFFSETS + 5) == guessing.rate(OFFSETS)
    guessing.observe(guess_features(SAID, OFFSETS + 5, 0.5, None), True, OFFSETS + 5, 0)


def test_what_was_learnt_can_be_kept(guessing: Guessing) -> None:
    table = guess_features(SAID, 1, 0.5, 0)
    for taken in (0, 1, None) * 20:
        guessing.observe(table, False, 1, taken)
    record = json.loads(json.dumps(guessing.to_record()))
    again = Guessing.read(Json(record, "this record", InvalidRequest))
    assert again.chances(table, False) == pytest.approx(guessing.chances(table, False))
    assert again.rate(1) == pytest.approx(guessing.rate(1))


@pytest.mark.parametrize(
    ("field", "value"),
    [("tries", [1.0]), ("hits", [0.0] * OFFSETS), ("hits", [99.0] * OFFSETS), ("laws", {})],
)
def test_a_record_that_is_no_prior_is_refused(
    guessing: Guessing, field: str, value: object
) -> None:
    record = guessing.to_record() | {field: value}
    with pytest.raises(InvalidRequest, match="this record"):
        Guessing.read(Json(record, "this record", InvalidRequest))
