"""The acceptance model: it learns what is so, says how sure it is, and can be kept."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from inference.errors import InvalidRequest
from inference.files.json_file import Json
from inference.planner.acceptance import (
    RANKS,
    SHIPPED,
    AcceptanceModel,
    read_acceptance,
    read_model,
    write_acceptance,
)
from inference.planner.child_features import FloatArray, rank_features

Scores = NDArray[np.float32]


@pytest.fixture
def model() -> AcceptanceModel:
    return read_acceptance()


def edges(
    model: AcceptanceModel, scores: Scores, depths: ArrayLike, greedy: bool
) -> FloatArray:  # [m, k], [m] -> [m, k]
    return model.edges_of(rank_features(scores, depths, greedy), scores, greedy)


def observe(
    model: AcceptanceModel, scores: Scores, depth: int, greedy: bool, taken: int | None
) -> None:
    """Tell the model of one verdict. taken: rank of the target's token, if it is one of [k]."""
    model.observe_path(rank_features(scores[None], [depth], greedy), greedy, [taken])


def made_of(record: dict[str, Any]) -> AcceptanceModel:
    return read_model(Json(record, "this record", InvalidRequest))


def draw(generator: np.random.Generator, rows: int, k: int, greedy: bool) -> Scores:  # [rows, k]
    """The k best of 40 log-probabilities in flat and in peaked rows, with noise unless greedy."""
    logits = generator.normal(size=(rows, 40)) * generator.uniform(0.5, 4, size=(rows, 1))
    scores = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    if not greedy:
        scores += generator.gumbel(size=scores.shape)
    return np.asarray(-np.sort(-scores, axis=1)[:, :k], dtype=np.float32)


def follow(
    model: AcceptanceModel,
    generator: np.random.Generator,
    rows: int,
    law: Callable[[Scores], float],
    greedy: bool,
) -> float:
    """Mean error after watching a target that takes the first of 4 children by this law."""
    for scores in draw(generator, rows, 4, greedy):
        observe(model, scores, 0, greedy, 0 if generator.random() < law(scores) else None)
    fresh = draw(generator, 400, 4, greedy)
    said = edges(model, fresh, np.zeros(400, dtype=int), greedy)[:, 0]
    return float(np.abs(said - [law(scores) for scores in fresh]).mean())


@pytest.mark.parametrize("greedy", [True, False])
def test_it_learns_a_law_and_follows_a_change_also_from_a_record(
    model: AcceptanceModel, greedy: bool
) -> None:
    def law(scores: Scores) -> float:  # the surer the draft is, the wronger
        return float(1 / (1 + np.exp(2 * (scores[0] - scores[1]) - 2)))

    generator = np.random.default_rng(1)
    assert follow(copy.deepcopy(model), generator, 0, law, greedy) > 0.3
    assert follow(model, generator, 1000, law, greedy) < 0.15
    assert follow(model, generator, 1500, lambda scores: 0.95, greedy) < 0.05
    assert follow(made_of(model.to_record()), generator, 600, lambda _: 0.3, greedy) < 0.15
    assert follow(model, generator, 600, lambda scores: 0.3, greedy) < 0.1
    assert model.mean_edges(1)[0] < 0.5


def assert_chances(model: AcceptanceModel, generator: np.random.Generator) -> None:
    """Of any row each child has a chance, and one is left for none of them."""
    for greedy, k, scale in product((True, False), (1, 2, 3, 8, 16), (1e-3, 1.0, 1e3)):
        scores = -np.sort(-generator.normal(size=(16, k)) * scale, axis=1).astype(np.float32)
        chances = edges(model, scores, generator.integers(0, 30, size=16), greedy)
        assert chances.shape == (16, k)
        assert np.isfinite(chances).all()
        assert (chances >= 0).all()
        assert (chances.sum(axis=1) < 1).all()


def test_every_row_has_probabilities_also_after_nonsense(model: AcceptanceModel) -> None:
    generator = np.random.default_rng(5)
    assert_chances(model, generator)
    for step in range(3000):
        k = int(generator.integers(1, 17))
        scores = -np.sort(generator.exponential(30, size=k)).astype(np.float32)
        taken = None if step % 3 else int(generator.integers(k))
        observe(model, scores, step % 40, bool(step % 2), taken)
    assert_chances(model, generator)
    excluded = np.array([[0.5, -0.5, -1e9, -1e9]], dtype=np.float32)  # by top-k or top-p
    chances = edges(model, excluded, [0], greedy=False)[0]
    assert (chances[:2] > 0).all()
    assert (chances[2:] == 0).all()


@pytest.mark.parametrize("greedy", [True, False])
def test_a_child_that_is_ahead_is_likelier(model: AcceptanceModel, greedy: bool) -> None:
    shares = np.array(
        [[share, (1 - share) / 2, (1 - share) / 4] for share in (0.4, 0.6, 0.8, 0.95, 0.99)]
    )
    chances = edges(model, np.log(shares).astype(np.float32), np.zeros(5, dtype=int), greedy)
    assert (np.diff(chances[:, 0]) > 0).all()
    assert (np.diff(chances[:, 1]) < 0).all()
    assert (chances[:, 0] > chances[:, 1]).all()


def test_average_rates_do_not_count_ranks_that_were_not_asked_for(model: AcceptanceModel) -> None:
    scores = draw(np.random.default_rng(8), 1, 2, True)[0]
    model.mean_edges(2)  # what was looked up before changes with what is learnt
    for step in range(1000):
        # the target takes either child equally often; half of the time only the first is named
        taken = step % 2
        named = 1 + step // 2 % 2
        observe(model, scores[:named], 0, True, taken if taken < named else None)
    np.testing.assert_allclose(model.mean_edges(2), [0.5, 0.5], atol=0.05)


def test_average_rates_never_increase_and_leave_a_chance_for_none(model: AcceptanceModel) -> None:
    generator = np.random.default_rng(9)
    for scores in draw(generator, 400, 16, False):
        observe(model, scores, 0, False, int(generator.choice([3, 7, 15])))
    for k in range(1, RANKS + 1):
        rates = model.mean_edges(k)
        assert rates.shape == (k,)
        assert (rates > 0).all()
        assert (np.diff(rates) <= 0).all()
        assert rates.sum() < 1
    for k in (0, RANKS + 1):
        with pytest.raises(ValueError, match=f"k = {k}"):
            model.mean_edges(k)


@pytest.mark.parametrize("greedy", [True, False])
def test_children_behind_the_accepted_one_teach_nothing(
    model: AcceptanceModel, greedy: bool
) -> None:
    scores, alike = draw(np.random.default_rng(3), 1, 20, greedy), copy.deepcopy(model)
    table, copies = rank_features(scores, [0], greedy), [[1.0, 1.1, 0.5, 0.7, 1.0]] * 2
    for one, named in ((model, 20), (alike, 1)):
        one.observe_path(table[:, :named], greedy, [0])
        one.laws.copies.observe(copies[:named], 0)
    found, expected = (edges(one, scores, [0], greedy) for one in (model, alike))
    np.testing.assert_array_equal(found, expected)
    assert model.laws.copies.chances(copies) == alike.laws.copies.chances(copies)
    model.observe_path(table, greedy, [19])  # a rank without an average rate


def test_a_record_makes_the_same_model_again(model: AcceptanceModel, tmp_path: Path) -> None:
    generator = np.random.default_rng(10)
    for scores in draw(generator, 200, 5, True):
        observe(model, scores, 1, bool(generator.integers(2)), int(generator.integers(5)))
    file = tmp_path / "made" / "acceptance.json"
    write_acceptance(model, file)
    again, scores = read_acceptance(file), draw(generator, 16, 8, True)
    for greedy in (True, False):
        np.testing.assert_allclose(
            edges(again, scores, np.arange(16), greedy), edges(model, scores, np.arange(16), greedy)
        )
    np.testing.assert_allclose(again.mean_edges(8), model.mean_edges(8))
    assert [path.name for path in file.parent.iterdir()] == ["acceptance.json"]


def changed(*path: str, to: Any) -> dict[str, Any]:
    """The shipped record with one entry replaced."""
    record: dict[str, Any] = json.loads(SHIPPED.read_text(encoding="utf-8"))
    place = record
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = to
    return record


@pytest.mark.parametrize(
    "record",
    [
        changed("version", to=1),
        changed("features", to=["one"]),
        changed("laws", "greedy", to={"weights": [1.0]}),
        changed("laws", "greedy", "weights", to=[1.0, 2.0]),
        changed("laws", "greedy", "precision", to=(-np.eye(7)).tolist()),
        changed("laws", "greedy", "precision", to=np.triu(np.ones((7, 7))).tolist()),
        changed("laws", "greedy", "worth", to=0),
        changed("rates", "tries", to=[1.0] * 3),
        changed("rates", "hits", to=[1e9] * RANKS),
        changed("rates", "hits", to=[0.0] * RANKS),
    ],
    ids=range(10),
)
def test_a_record_that_cannot_be_used_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="this record"):
        made_of(record)
