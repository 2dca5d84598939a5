"""A tree under construction: what is most valuable, and how a selection of it looks."""

from __future__ import annotations

import numpy as np
import pytest

from inference.drafters.growth import Growth
from inference.tree import sight
from tests.support.growths import below, grown


@pytest.mark.parametrize("seed", range(5))
def test_the_best_nodes_are_those_of_greatest_value_and_of_equals_the_earlier_one(
    seed: int,
) -> None:
    growth = grown(seed)
    ordered = sorted(below(growth, 0), key=lambda node: (-growth.values[node], node))
    assert growth.best() == [0, *ordered[:10]]
    assert growth.best(3) == [0, *[node for node in ordered if growth.depths[node] <= 3][:10]]


def test_the_least_of_the_best_is_nothing_while_there_is_room() -> None:
    growth = Growth(0, 3)
    growth.add(0, 1, 0.5)
    assert growth.least_of_best([0.2]) == 0.0
    assert growth.least_of_best([0.2, 0.4]) == 0.2
    assert growth.least_of_best([0.2, 0.4, 0.3]) == 0.3


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
