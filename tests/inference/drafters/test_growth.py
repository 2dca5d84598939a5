"""A tree under construction: what is most valuable, what was not looked at yet, and what is left
of it under one of its nodes.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from inference.drafters.growth import Growth
from inference.tree import sight


def grown(seed: int, nodes: int = 60, limit: int = 10) -> Growth:
    """A random tree; edges are such that several values are equal."""
    dice, growth = random.Random(seed), Growth(7, limit)
    for token in range(1, nodes):
        growth.add(dice.randrange(token), token, dice.choice([0.25, 0.5]))
    return growth


def below(growth: Growth, root: int) -> list[int]:
    """The nodes under `root`, found by walking up from each."""

    def ancestors(node: int) -> list[int]:
        return (
            []
            if growth.parents[node] < 0
            else [growth.parents[node], *ancestors(growth.parents[node])]
        )

    return [node for node in range(len(growth)) if root in ancestors(node)]


@pytest.mark.parametrize("seed", range(5))
def test_the_best_nodes_are_those_of_greatest_value_and_of_equals_the_earlier_one(
    seed: int,
) -> None:
    growth = grown(seed)
    for root in (0, 1, 2):
        ordered = sorted(below(growth, root), key=lambda node: (-growth.values[node], node))
        assert growth.best(root=root) == [root, *ordered[:10]]
        assert growth.best(3, root) == [
            root,
            *[node for node in ordered if growth.depths[node] <= 3][:10],
        ]


def test_the_least_of_the_best_is_nothing_while_there_is_room() -> None:
    growth = Growth(0, 3)
    growth.add(0, 1, 0.5)
    assert growth.least_of_best([0.2]) == 0.0
    assert growth.least_of_best([0.2, 0.4]) == 0.2
    assert growth.least_of_best([0.2, 0.4, 0.3]) == 0.3


@pytest.mark.parametrize("seed", range(5))
def test_what_is_left_under_a_node_is_the_same_tree_with_chances_from_there(seed: int) -> None:
    growth = grown(seed)
    left, place = growth.under(1)
    assert list(place) == [1, *below(growth, 1)]
    assert (left.parents[0], left.depths[0], left.limit) == (-1, 0, growth.limit)
    for old, new in place.items():
        assert left.tokens[new] == growth.tokens[old]
        assert left.depths[new] == growth.depths[old] - growth.depths[1]
        assert left.values[new] == pytest.approx(growth.values[old] / growth.values[1])
        assert old == 1 or left.parents[new] == place[growth.parents[old]]


def test_a_child_is_found_by_its_token() -> None:
    growth = Growth(0, 3)
    first, second = growth.add(0, 5, 0.5), growth.add(0, 6, 0.4)
    below_first = growth.add(first, 6, 0.5)
    assert (
        growth.child(0, 6),
        growth.child(first, 6),
        growth.child(second, 6),
        growth.child(0, 7),
    ) == (second, below_first, None, None)


@pytest.mark.parametrize("seed", range(5))
def test_some_nodes_see_each_other_as_they_do_in_the_whole_tree(seed: int) -> None:
    growth = grown(seed)
    tree = growth.tree
    root = next(node for node in range(1, len(tree)) if below(growth, node))
    for nodes in (
        [root, *below(growth, root)],
        [node for node in range(len(tree)) if node not in growth.parents],
        growth.best(),
    ):
        np.testing.assert_array_equal(sight(growth, nodes), tree.mask[np.ix_(nodes, nodes)])


def test_a_tree_selected_while_it_grows_is_the_one_selected_of_the_finished_tree() -> None:
    growth = grown(3)
    made, expected = growth.select(growth.best()), growth.tree.select(growth.best())
    assert (made.tokens.tolist(), made.parents.tolist()) == (
        expected.tokens.tolist(),
        expected.parents.tolist(),
    )
