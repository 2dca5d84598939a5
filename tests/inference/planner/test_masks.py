"""Chances of what masks name: they fall along a surprising path, are learnt, and can be kept."""

from __future__ import annotations

import json

import numpy as np
import pytest

from inference.errors import InvalidRequest
from inference.json_file import Json
from inference.planner.acceptance import OFFSETS, AcceptanceModel
from inference.planner.acceptance_file import read_acceptance, read_model
from inference.planner.child_features import mask_features, rank_features, said_by

SCORES = np.array([[-0.3, -2.0, -3.0, -4.0]], dtype=np.float32)
SAID = said_by(rank_features(SCORES, [0], True)[0])


@pytest.fixture
def model() -> AcceptanceModel:
    return read_acceptance()


def test_a_row_of_chances_adds_up_to_less_than_one(model: AcceptanceModel) -> None:
    for path in (0.0, 2.0, 50.0):
        chances = model.masked(mask_features(SAID, 1, path, None), True)
        assert len(chances) == 4
        assert 0 < min(chances) <= sum(chances) < 1


@pytest.mark.parametrize("greedy", [False, True])
def test_a_mask_is_worth_less_behind_a_surprising_path(
    model: AcceptanceModel, greedy: bool
) -> None:
    likely, surprising = (
        model.masked(mask_features(SAID, 1, path, None), greedy) for path in (0.1, 4.0)
    )
    assert surprising[0] < likely[0]


def test_what_masks_are_worth_is_learnt_for_each_kind_of_decoding(model: AcceptanceModel) -> None:
    table = mask_features(SAID, 2, 0.5, None)
    (before, *_), sampled = model.masked(table, True), model.masked(table, False)
    rate = model.mask_rate(2)
    for _ in range(200):
        model.observe_masked(table, True, 2, None)
    assert model.masked(table, True)[0] < 0.1 < before
    assert model.masked(table, False) == sampled
    assert model.mask_rate(2) < 0.1 < rate
    for _ in range(300):
        model.observe_masked(table, True, 2, 0)
    assert model.masked(table, True)[0] > 0.8
    assert model.mask_rate(2) > 0.7


def test_a_later_mask_than_any_that_is_counted_has_the_last_ones_rate(
    model: AcceptanceModel,
) -> None:
    assert model.mask_rate(OFFSETS + 5) == model.mask_rate(OFFSETS)
    model.observe_masked(mask_features(SAID, OFFSETS + 5, 0.5, None), True, OFFSETS + 5, 0)


def test_what_was_learnt_can_be_kept(model: AcceptanceModel) -> None:
    table = mask_features(SAID, 1, 0.5, 0)
    for taken in (0, 1, None) * 20:
        model.observe_masked(table, False, 1, taken)
    record = json.loads(json.dumps(model.to_record()))
    again = read_model(Json(record, "this record", InvalidRequest))
    assert again.masked(table, False) == pytest.approx(model.masked(table, False))
    assert again.mask_rate(1) == pytest.approx(model.mask_rate(1))


@pytest.mark.parametrize(
    ("field", "value"),
    [("tries", [1.0]), ("hits", [0.0] * OFFSETS), ("hits", [99.0] * OFFSETS), ("laws", {})],
)
def test_a_record_that_is_no_prior_is_refused(
    model: AcceptanceModel, field: str, value: object
) -> None:
    record = model.to_record()
    record["guessing"] |= {field: value}
    with pytest.raises(InvalidRequest, match="this record"):
        read_model(Json(record, "this record", InvalidRequest))
