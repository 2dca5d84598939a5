"""Looking back at a path tells what trees along it hold: against trees that are really grown in worlds whose chances are known."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from inference.hindsight import DEPTHS, LEAST_BETS, LEAST_VALUES, Hindsight, look_back

EASY, HARD = (0.96, 0.03), (0.5, 0.2, 0.1)
"""Chances of the ranks at two kinds of nodes; what is left is a token that the draft does not name."""


def path(kinds: tuple[tuple[float, ...], ...], tokens: int, seed: int = 5) -> NDArray[np.float64]:
    """Of a target that takes each rank with its chance, in contexts that come by lot."""
    random = np.random.default_rng(seed)
    rows = np.array([[*kind, *[0.0] * (8 - len(kind))] for kind in kinds])
    contexts = random.integers(len(kinds), size=tokens)
    ranks = (random.random(tokens)[:, None] > np.cumsum(rows[contexts], axis=1)).sum(axis=1)
    return np.where(ranks < 8, rows[contexts, np.minimum(ranks, 7)], 0.0)


def grown(kinds: tuple[tuple[float, ...], ...], least: float) -> list[float]:
    """Nodes on each level of the tree of all nodes whose value is not below `least`, averaged over every way contexts can fall."""
    level, sizes = {1.0: 1.0}, list[float]()  # how many nodes of each value there are, on average
    while level:
        below: dict[float, float] = {}
        for value, count in level.items():
            for kind in kinds:
                for chance in kind:
                    child = round(value * chance, 12)
                    if child >= least:
                        below[child] = below.get(child, 0.0) + count / len(kinds)
        sizes.append(sum(below.values()))
        level = below
    return sizes


@pytest.mark.parametrize("kinds", [(EASY,), (HARD,), (EASY, HARD)])
def test_one_path_tells_how_many_nodes_the_trees_have(kinds: tuple[tuple[float, ...], ...]) -> None:
    seen = look_back(path(kinds, 6000))
    for index, least in enumerate(LEAST_VALUES):
        if least >= 0.04:
            sizes = grown(kinds, least)[: max(DEPTHS)]
            found = seen.levels[index, 1 : 1 + len(sizes)]
            assert found == pytest.approx(np.array(sizes), rel=0.15, abs=0.15)


def test_how_often_the_path_stays_inside_is_the_value_of_the_nodes() -> None:
    """With contexts of one kind the tree is known: a chain of ever likelier ends, and the path stays with their chance."""
    seen = look_back(path(((0.8,),), 6000))
    inside = seen.inside[LEAST_VALUES.index(0.2)]  # 0.8**7 is 0.21
    assert inside[:8] == pytest.approx(0.8 ** np.arange(8), abs=0.03)
    assert not inside[8:].any()


def test_a_target_that_does_what_the_draft_says_never_leaves() -> None:
    seen = look_back([1.0])
    assert (seen.levels == 1).all()
    assert (seen.inside == 1).all()
    assert (seen.hits == 1).all()
    assert (seen.bets == 1).all()


def test_a_draft_that_never_names_the_token_has_no_trees_and_no_bets() -> None:
    seen = look_back([0.0] * 5)
    assert not seen.levels[:, 1:].any()
    assert not seen.hits.any()
    assert not seen.bets.any()


def test_what_comes_after_a_chain_is_bet_on_with_its_chance() -> None:
    """A tree of depth 1 on a target that takes the first guess in 8 of 10 and the second in the others."""
    seen = look_back(path(((0.8, 0.2),), 6000))
    tree = LEAST_VALUES.index(0.3), DEPTHS.index(1)  # the first guess alone
    hits, bets = seen.hits[tree], seen.bets[tree]
    assert hits[LEAST_BETS.index(0.3)] == pytest.approx(0.64, abs=0.03)  # the first guess twice
    assert bets[LEAST_BETS.index(0.3)] == pytest.approx(1.0, abs=0.05)
    assert hits[LEAST_BETS.index(0.1)] == pytest.approx(
        1.0, abs=0.01
    )  # or the second at once, or after the first
    assert bets[LEAST_BETS.index(0.1)] == pytest.approx(3.0, abs=0.15)


def test_larger_trees_hold_more_and_are_left_less_often() -> None:
    seen = look_back(path((EASY, HARD), 500))
    assert (np.diff(seen.levels, axis=0) >= 0).all()
    assert (np.diff(seen.inside, axis=0) >= 0).all()
    assert (np.diff(seen.hits, axis=-1) >= 0).all()
    assert (np.diff(seen.bets, axis=-1) >= 0).all()


def test_sums_run_to_each_depth() -> None:
    sums = Hindsight.to_depth(np.ones((2, max(DEPTHS))))
    assert sums.tolist() == [list(DEPTHS)] * 2


@pytest.mark.parametrize("useless", [[], [1.1], [-0.1], [float("nan")], [[0.5]]])
def test_what_is_no_path_is_refused(useless: list[object]) -> None:
    with pytest.raises(ValueError, match="chances between 0 and 1"):
        look_back(useless)
