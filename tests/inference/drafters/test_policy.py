"""How trees grow: dynamic trees against their definition, budgets always."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from inference.backends import Ranked
from inference.drafters.draft_tree import DraftTree
from inference.drafters.round_proposer import BestFirst, Budget, Chain, Policy
from inference.errors import InvalidRequest
from inference.planner.prices import TUNING, Prices, Usage
from inference.tree.growing_tree import NOWHERE, Mark


class Ranker:
    """A draft whose children of a node are 10 * token + rank."""

    def __init__(self, of: DraftTree) -> None:
        self.tree, self.ranked = of, {NOWHERE}

    def __call__(self, nodes: Sequence[Mark], k: int) -> Ranked:
        assert self.ranked.issuperset(map(self.tree.parent, nodes))
        self.ranked |= set(nodes)
        tokens = [self.tree.token(node) for node in nodes]
        ids = np.array([[10 * token + rank for rank in range(k)] for token in tokens], np.int32)
        scores = [[-(1.0 + token % 3) * rank for rank in range(k)] for token in tokens]
        return Ranked(ids, np.array(scores, np.float32))


def tree() -> DraftTree:
    return DraftTree(1, 0, 1000)


POLICIES = [Chain(4), BestFirst(12, 4)]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize(
    "budget",
    [Budget(0, 5), Budget(5, 0), Budget(1, 1), Budget(3, 9), Budget(40, 2), Budget(40, 40)],
)
def test_policies_keep_their_budgets_and_make_trees(policy: Policy, budget: Budget) -> None:
    whole = tree()
    grown = policy.grow(whole, budget, Ranker(whole))
    assert len(grown) <= min(budget.nodes, 12)
    assert all(whole.position_of(node) <= budget.depth for node in grown)
    sent = {whole.root}
    for node in grown:
        assert whole.parent(node) in sent
        sent.add(node)
    ranks = [whole.rank(node) for node in grown]
    assert ranks == sorted(ranks)


def test_a_chain_is_the_likeliest_token_again_and_again() -> None:
    whole = tree()
    grown = Chain(3).grow(whole, Budget(9, 9), Ranker(whole))
    assert [whole.token(node) for node in grown] == [10, 100, 1000]
    assert [whole.position_of(node) for node in grown] == [1, 2, 3]


def test_a_dynamic_tree_holds_the_most_probable_nodes() -> None:
    whole = tree()
    grown = BestFirst(nodes=8, depth=3, width=3).grow(whole, Budget(8, 3), Ranker(whole))
    values: dict[tuple[int, ...], float] = {(): 1.0}
    tokens: dict[tuple[int, ...], int] = {(): 1}
    for depth in range(3):
        for path in [path for path in values if len(path) == depth]:
            sharp = 1.0 + tokens[path] % 3
            weights = np.exp(-sharp * np.arange(3))
            for rank in range(3):
                values[(*path, rank)] = values[path] * weights[rank] / weights.sum()
                tokens[(*path, rank)] = 10 * tokens[path] + rank
    expected = sorted((value for path, value in values.items() if path), reverse=True)[:8]
    assert [math.exp(-whole.rank(node)) for node in grown] == pytest.approx(expected)


def test_a_dynamic_tree_leaves_out_what_cannot_be_chosen_and_ranks_no_more_than_it_sends() -> None:
    """A nucleus of one token makes a chain; of equal tokens no more are expanded than fit."""

    def one_of_eight(nodes: Sequence[Mark], k: int) -> Ranked:
        ids = np.arange(k, dtype=np.int32)[None].repeat(len(nodes), 0)
        return Ranked(ids, np.where(ids == 0, 0, -1e9).astype(np.float32))

    def all_equal(nodes: Sequence[Mark], k: int) -> Ranked:
        assert len(nodes) <= 16
        return Ranked(
            np.arange(k, dtype=np.int32)[None].repeat(len(nodes), 0),
            np.zeros((len(nodes), k), dtype=np.float32),
        )

    whole = tree()
    chain = BestFirst(16, 6).grow(whole, Budget(16, 6), one_of_eight)
    assert [whole.position_of(node) for node in chain] == [1, 2, 3, 4, 5, 6]
    assert len(BestFirst(16, 6).grow(tree(), Budget(16, 6), all_equal)) == 16


@pytest.mark.parametrize("build", [lambda: Chain(-1), lambda: BestFirst(0, 3)])
def test_a_senseless_policy_is_refused(build: object) -> None:
    with pytest.raises(InvalidRequest):
        build()  # type: ignore[operator]


def test_a_pause_raises_the_price_of_a_token_until_it_is_forgotten() -> None:
    prices, remembered = Prices(), int(TUNING.remembered_tokens)
    assert prices.token == 0.0
    for _ in range(10):
        prices.committed(1, Usage(wall=0.1))
    assert prices.token == pytest.approx(0.1)
    prices.committed(1, Usage(wall=5.0))
    behind = prices.token
    assert 0.1 < behind < 5.0
    for _ in range(remembered):
        prices.committed(1, Usage(wall=0.1))
        assert 0.1 < prices.token < behind
        behind = prices.token
    for tokens in (remembered, 2 * remembered):  # they leave nothing of what came before
        prices.committed(1, Usage(wall=5.0))
        prices.committed(tokens, Usage(wall=0.1 * tokens))
        assert prices.token == pytest.approx(0.1)
