"""Rejection sampling without replacement: tokens are distributed as the target's, whatever the draft and the tree's shape; mistakes show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import erfc, sqrt
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inference import accept
from inference.accept import accept_rejection
from inference.drawing import Chance, DrawnTree, Purpose, draw, draw_tree
from inference.policy import Edge, best_static_tree

Table = NDArray[np.float64]  # [V, V] the distribution after each token

CHAIN = best_static_tree((1.0,), 3, 3)
TREE = best_static_tree((0.5, 0.3, 0.15), 9, 3)
UNLIKELY = 1e-4
"""What a correct sampler's chi-square may be: seeds are fixed, so a test that passes once passes always."""


def chi_square(counts: Counter[Any], expected: Mapping[Any, float], draws: int) -> float:
    """Probability of deviations as large as these or larger; outcomes expected less than five times are one.

    expected: probabilities, of which the rest to 1 belongs to outcomes that are not named.
    """
    large = {outcome: share * draws for outcome, share in expected.items() if share * draws >= 5}
    observed = [counts[outcome] for outcome in large] + [
        draws - sum(counts[outcome] for outcome in large)
    ]
    wanted = [*large.values(), draws - sum(large.values())]
    if wanted[-1] < 1:
        assert observed[-1] <= 20 * max(wanted[-1], 0.05), "outcomes that should hardly be there"
        observed, wanted = observed[:-1], wanted[:-1]
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in zip(observed, wanted, strict=True))
    freedom = len(wanted) - 1
    deviation = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / sqrt(
        2 / (9 * freedom)
    )  # Wilson and Hilferty 1931
    return 0.5 * erfc(deviation / sqrt(2))


def tables(kind: str) -> tuple[Table, Table]:
    """Target and draft over 5 tokens."""
    numbers = np.random.default_rng(5)
    target, draft = numbers.dirichlet([0.7] * 5, 5), numbers.dirichlet([0.7] * 5, 5)
    if kind == "close":
        draft = 0.9 * target + 0.1 * draft
    if kind == "zeros":
        draft[:, :2] = 0.0
        target[:, 3] = 0.0
        target[2] = [0, 0, 0, 0, 1.0]
    return target / target.sum(-1, keepdims=True), draft / draft.sum(-1, keepdims=True)


def text(
    seed: int, shape: Sequence[Edge], target: Table, draft: Table, length: int = 2
) -> tuple[int, ...]:
    """Tokens after token 0, made in as many rounds as it takes."""
    tokens, chance = [0], Chance(seed)
    while len(tokens) <= length:
        tree = draw_tree(
            tokens[-1],
            shape,
            len(tokens),
            chance,
            lambda tree, nodes: draft[tree.tokens[list(nodes)]],
        )
        verdict = accept_rejection(tree, target[tree.tokens], len(tokens), chance)
        tokens += [*tree.tokens[list(verdict.path)].tolist(), verdict.next_token]
    return tuple(tokens[1 : 1 + length])


def fit(shape: Sequence[Edge], kind: str, draws: int = 1200) -> float:
    """How well texts of two tokens fit the product of the target's probabilities."""
    target, draft = tables(kind)
    counts = Counter(text(seed, shape, target, draft) for seed in range(draws))
    exact = {(a, b): float(target[0, a] * target[a, b]) for a in range(5) for b in range(5)}
    return chi_square(counts, exact, draws)


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("kind", ["far", "close", "zeros"])
def test_texts_are_distributed_as_the_targets_own(shape: Sequence[Edge], kind: str) -> None:
    assert fit(shape, kind) > UNLIKELY


def without_the_draft(target: Table, draft: Table) -> Table:
    """The usual mistake: after a rejection the target's own distribution is drawn from."""
    return target


def with_half_of_the_draft(target: Table, draft: Table) -> Table:
    """A smaller mistake."""
    left: Table = np.maximum(target - 0.5 * draft, 0.0)
    return left / float(left.sum())


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("mistake", [without_the_draft, with_half_of_the_draft])
def test_a_wrong_residual_does_not_pass_that_test(
    shape: Sequence[Edge], mistake: Callable[[Table, Table], Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accept, "residual", mistake)
    assert fit(shape, "far") < UNLIKELY


def test_no_number_serves_twice() -> None:
    """Numbers of all positions and purposes of two requests are even, different and unrelated; asked for again they are the same."""
    series = [
        Chance(seed).uniforms(position, purpose, 500)
        for seed in (1, 2)
        for position in (1, 2, 3)
        for purpose in Purpose
    ]
    everything = np.concatenate(series)
    assert len(set(everything.tolist())) == len(everything) == 9000
    assert everything.min() > 0
    assert everything.max() < 1
    assert np.histogram(everything, 10, (0, 1))[0] == pytest.approx(
        np.full(10, 900), abs=4 * sqrt(900)
    )
    related = np.corrcoef(series) - np.eye(len(series))
    assert np.abs(related).max() < 4.5 / sqrt(500)
    assert Chance(2).uniforms(3, Purpose.CORRECTING, 500).tolist() == series[-1].tolist()


def test_siblings_are_drawn_in_proportion_to_what_is_left() -> None:
    """Orders of three of four tokens against the product 0.5 * 0.3 / 0.5 * ..., and no token of probability 0."""
    shares = np.array([0.5, 0.3, 0.15, 0.05, 0.0])
    counts = Counter(
        tuple(draw(shares, -np.log(Chance(seed).uniforms(7, Purpose.DRAWING, 5)), 3).tolist())
        for seed in range(3000)
    )
    exact = {
        (a, b, c): shares[a] * shares[b] / (1 - shares[a]) * shares[c] / (1 - shares[a] - shares[b])
        for a in range(4) for b in range(4) for c in range(4) if len({a, b, c}) == 3
    }  # fmt: skip
    assert chi_square(counts, exact, 3000) > UNLIKELY
    assert len(draw(shares, np.ones(5), 9)) == 4


def test_a_chain_accepts_as_often_as_the_distributions_overlap() -> None:
    """The chance of the first token is the sum of the smaller probabilities, the most that one draft can have."""
    target, draft = tables("far")
    one = best_static_tree((1.0,), 1, 1)
    accepted = 0
    for seed in range(2500):
        tree = draw_tree(
            0, one, 1, Chance(seed), lambda tree, nodes: draft[tree.tokens[list(nodes)]]
        )
        accepted += len(accept_rejection(tree, target[tree.tokens], 1, Chance(seed)).path)
    overlap = float(np.minimum(target[0], draft[0]).sum())
    assert accepted / 2500 == pytest.approx(overlap, abs=4 * sqrt(overlap * (1 - overlap) / 2500))


def test_a_draft_equal_to_the_target_is_never_corrected() -> None:
    target, _ = tables("far")
    for seed in range(200):
        tree = draw_tree(
            0,
            CHAIN,
            1,
            Chance(seed),
            lambda tree, nodes: target[tree.tokens[list(nodes)]].astype(np.float32),
        )
        assert (
            len(
                accept_rejection(tree, target[tree.tokens].astype(np.float32), 1, Chance(seed)).path
            )
            == 3
        )


def test_a_cut_tree_is_one_to_be_matched() -> None:
    _, draft = tables("far")
    tree = draw_tree(0, TREE, 1, Chance(1), lambda tree, nodes: draft[tree.tokens[list(nodes)]])
    assert isinstance(tree, DrawnTree)
    assert not isinstance(tree.prefix(3), DrawnTree)
    assert tree.prefix(len(tree)) is tree
