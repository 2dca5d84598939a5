"""How trees grow: static shapes against brute force, dynamic trees against their definition,
budgets always.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from inference.backends import Ranked
from inference.drafters.tree_policies import (
    BestFirst,
    Budget,
    Chain,
    Policy,
    Static,
    best_static_tree,
    edge_values,
)
from inference.errors import InvalidRequest
from inference.tree import TokenTree


class Ranker:
    """A draft whose children of a node are 10 * token + rank, with scores that depend on the
    path.
    """

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def __call__(self, tree: TokenTree, nodes: Sequence[int], k: int) -> Ranked:
        assert all(tree.parents[node] in self.ranked for node in nodes if node)
        self.calls.append(list(nodes))
        ids = np.array(
            [[10 * tree.tokens[node] + rank for rank in range(k)] for node in nodes], dtype=np.int32
        )
        sharp = np.array([1.0 + tree.tokens[node] % 3 for node in nodes], dtype=np.float32)
        return Ranked(ids, -sharp[:, None] * np.arange(k, dtype=np.float32))

    @property
    def ranked(self) -> set[int]:
        return {node for call in self.calls for node in call}


POLICIES = [Chain(4), Static((0.5, 0.3, 0.1), 12, 4), BestFirst(12, 4)]


def all_shapes(nodes: int, ranks: int, depth: int) -> list[list[tuple[int, int]]]:
    """Every tree of `nodes` nodes as (parent, rank) lists in which an elder sibling always
    exists: by brute force.
    """
    shapes = []
    for parents in itertools.product(*[range(n) for n in range(1, nodes + 1)]):
        levels, taken, shape = [0], [0] * (nodes + 1), []
        for parent in parents:
            shape.append((parent, taken[parent]))
            taken[parent] += 1
            levels.append(levels[parent] + 1)
        if max(levels) <= depth and max(taken) <= ranks:
            shapes.append(shape)
    return shapes


def worth(shape: Sequence[tuple[int, int]], rates: Sequence[float]) -> float:
    values = [1.0]
    for parent, rank in shape:
        values.append(values[parent] * rates[rank])
    return sum(values)


@pytest.mark.parametrize("rates", [(0.6, 0.2, 0.1), (0.35, 0.33, 0.31), (0.9, 0.05, 0.01)])
@pytest.mark.parametrize("depth", [2, 6])
def test_the_static_tree_is_worth_as_much_as_the_best_of_all_trees(
    rates: tuple[float, ...], depth: int
) -> None:
    for nodes in range(1, 7):
        edges = best_static_tree(rates, nodes, depth)
        best = max(worth(shape, rates) for shape in all_shapes(nodes, len(rates), depth))
        assert worth([(edge.parent, edge.rank) for edge in edges], rates) == pytest.approx(best)
        assert all(edge.depth <= depth for edge in edges)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize(
    "budget",
    [Budget(0, 5), Budget(5, 0), Budget(1, 1), Budget(3, 9), Budget(40, 2), Budget(40, 40)],
)
def test_no_policy_exceeds_its_budget_and_its_best_nodes_are_a_tree(
    policy: Policy, budget: Budget
) -> None:
    growth = policy.grow(1, budget, Ranker())
    sent = growth.tree.select(growth.best())
    assert len(sent) - 1 <= min(budget.nodes, 12)
    assert sent.depths.max() <= budget.depth
    values = [growth.values[node] for node in growth.best()]
    assert values == sorted(values, reverse=True)


def test_a_chain_is_the_likeliest_token_again_and_again() -> None:
    growth = Chain(3).grow(1, Budget(9, 9), Ranker())
    assert growth.tokens == [1, 10, 100, 1000]
    assert growth.parents == [-1, 0, 1, 2]


def test_a_static_tree_has_the_shape_of_its_rates_whatever_the_scores() -> None:
    policy, ranker = Static((0.6, 0.2), 4, 3), Ranker()
    growth = policy.grow(1, Budget(9, 9), ranker)
    assert sorted(growth.tokens[1:]) == sorted([10, 100, 1000, 11])
    assert growth.depths[growth.tokens.index(1000)] == 3
    assert len(ranker.calls) == 3


def test_a_static_tree_asks_for_a_level_once_and_only_for_nodes_with_children() -> None:
    ranker = Ranker()
    growth = Static((0.5, 0.3, 0.1), 12, 4).grow(1, Budget(12, 4), ranker)
    assert len(growth) == 13
    assert ranker.ranked == {parent for parent in growth.parents if parent >= 0}


def test_a_dynamic_tree_holds_the_most_probable_nodes() -> None:
    """Against a full tree of width 3 and depth 3, sorted."""
    growth = BestFirst(nodes=8, depth=3, width=3).grow(1, Budget(8, 3), Ranker())
    values = {(): 1.0}
    tokens = {(): 1}
    for depth in range(3):
        for path in [path for path in values if len(path) == depth]:
            sharp = 1.0 + tokens[path] % 3
            weights = np.exp(-sharp * np.arange(3))
            for rank in range(3):
                values[(*path, rank)] = values[path] * weights[rank] / weights.sum()
                tokens[(*path, rank)] = 10 * tokens[path] + rank
    expected = sorted((value for path, value in values.items() if path), reverse=True)[:8]
    assert [growth.values[node] for node in growth.best()[1:]] == pytest.approx(expected)


def test_a_dynamic_tree_leaves_out_what_cannot_be_chosen_and_ranks_no_more_than_it_sends() -> None:
    """A nucleus of one token makes a chain, however wide the ranking; of equal tokens no more
    are expanded than fit.
    """

    def one_of_eight(tree: TokenTree, nodes: Sequence[int], k: int) -> Ranked:
        ids = np.arange(k, dtype=np.int32)[None].repeat(len(nodes), 0)
        return Ranked(ids, np.where(ids == 0, 0, -1e9).astype(np.float32))

    def all_equal(tree: TokenTree, nodes: Sequence[int], k: int) -> Ranked:
        assert len(nodes) <= 16
        return Ranked(
            np.arange(k, dtype=np.int32)[None].repeat(len(nodes), 0),
            np.zeros((len(nodes), k), dtype=np.float32),
        )

    assert BestFirst(16, 6).grow(1, Budget(16, 6), one_of_eight).parents == [-1, 0, 1, 2, 3, 4, 5]
    growth = BestFirst(16, 6).grow(1, Budget(16, 6), all_equal)
    assert len(growth.tree.select(growth.best())) == 17


def test_edge_values_are_a_distribution_that_keeps_the_order() -> None:
    values = edge_values(np.array([[3.0, 1.0, -1e9], [0.0, 0.0, 0.0]], dtype=np.float32))
    assert values.sum(axis=-1) == pytest.approx([1, 1])
    assert values[0, 0] > values[0, 1] > values[0, 2]


@pytest.mark.parametrize(
    "build",
    [
        lambda: Chain(-1),
        lambda: BestFirst(0, 3),
        lambda: Static((0.5, 0.6), 4, 4),
        lambda: Static((0.2, 0.3), 4, 4),
    ],
)
def test_a_senseless_policy_is_refused(build: object) -> None:
    with pytest.raises(InvalidRequest):
        build()  # type: ignore[operator]
