"""Slots, masks and rows as llama.cpp's sequences, on a context that can be computed by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from inference.backends import Segment
from inference.backends.eager import rank_at
from inference.backends.gguf.model import GgufModel
from inference.backends.gguf.trees import BranchSequences, GgufTrees
from inference.backends.libraries.host_choice import rank_of_row
from inference.errors import LimitExceeded, Unavailable
from inference.sampling import SamplingParams
from inference.tree.token_tree import TokenTree
from tests.support.gguf_models import VOCABULARY, Cells, logits_after, model_of, seen_after
from tests.support.models import sequence_after
from tests.support.refusals import assert_refused

PROMPT: list[int] = np.random.default_rng(4).integers(0, VOCABULARY, 34).tolist()


def trees_of(cells: Cells, rows: int = 1, capacity: int = 176, batch: int = 256) -> GgufModel:
    return model_of(GgufTrees(cells, rows=rows, capacity=capacity, batch=batch), max_nodes=32)


def siblings(count: int) -> TokenTree:
    return TokenTree(
        np.arange(count + 1, dtype=np.int32), np.array([-1] + [0] * count, dtype=np.int32)
    )


def after(prefix: Sequence[int], tokens: Sequence[int]) -> list[int]:
    seen = [seen_after([*prefix, token], 0) for token in tokens]
    return [int(logits_after(one)[:VOCABULARY].argmax()) for one in seen]


@pytest.fixture
def cells() -> Cells:
    return Cells()


def test_keys_are_kept_and_a_forward_computes_its_new_nodes_only(cells: Cells) -> None:
    sequence = sequence_after(trees_of(cells), PROMPT)
    before = cells.tokens
    sequence.choose(siblings(5))
    assert cells.tokens - before == 6
    assert cells.used == len(PROMPT) + 6


def test_a_failed_decode_is_an_error_and_changes_nothing_in_the_next_call(cells: Cells) -> None:
    sequence = sequence_after(trees_of(cells), PROMPT)
    cells.fails = True
    assert_refused(lambda: sequence.choose(siblings(5)), ["made to fail"], Unavailable)
    assert cells.used == len(PROMPT)
    chosen = sequence.choose(siblings(5))
    assert chosen.tolist()[1:] == after([*PROMPT, 0], range(1, 6))


def test_a_tree_of_too_many_branches_is_refused_and_changes_nothing() -> None:
    cells = Cells(sequences=12)
    sequence = sequence_after(trees_of(cells), PROMPT)
    shown = ["11 branches", "12 sequences"]
    assert_refused(lambda: sequence.choose(siblings(11)), shown, LimitExceeded)
    assert sequence.choose(siblings(10)).tolist()[1:] == after([*PROMPT, 0], range(1, 11))


def test_siblings_that_are_ranked_in_a_later_call_have_one_path_above_them() -> None:
    sequence = sequence_after(trees_of(Cells(sequences=34)), PROMPT)
    tree = siblings(31)
    sequence.rank(tree, [0], 1)
    ranked = sequence.rank(tree, range(1, 32), 1)
    assert ranked.ids[:, 0].tolist() == after([*PROMPT, 0], range(1, 32))


class NoCells:
    sequences = 7

    def copy(self, source: int, target: int, start: int, end: int) -> None: ...

    def remove(self, sequence: int, start: int) -> None: ...


def test_a_path_that_a_call_needs_stays_in_one_of_two_sequences_that_hold_it() -> None:
    branches = BranchSequences(NoCells(), rows=2, capacity=32)

    def written(row: int, path: Sequence[int], more: Sequence[int]) -> None:
        sequence = branches.take(row, np.array(path, dtype=np.int32))
        branches.extend(sequence, np.array(more, dtype=np.int32))

    calls: list[list[tuple[int, list[int], list[int]]]] = [
        [(1, [], [0, 1, 2])],
        [(1, [0], [4])],
        [(1, [0, 1, 2], []), (1, [0, 1, 2], [3])],
        [(1, [0, 4], [])],
        [(0, [], [0, 1]), (0, [], [2]), (0, [], [3]), (0, [], [4])],
    ]
    for call in calls:
        branches.begin()
        for row, path, more in call:
            written(row, path, more)
    needed = np.array([0, 1, 2], dtype=np.int32)
    assert branches.known(1, needed) == 3
    branches.begin()
    written(0, [0], [5])
    written(0, [0], [6])
    assert branches.known(1, needed) == 3


def test_rows_that_do_not_fit_into_one_decode_are_computed_in_several(cells: Cells) -> None:
    model = trees_of(cells, rows=3, batch=32)
    rows = [sequence_after(model, [row, *PROMPT], row) for row in range(3)]
    before = cells.decodes
    chosen = model.choose([sequence.prepare(siblings(14)) for sequence in rows])
    assert cells.decodes - before == 2
    for row, ids in enumerate(chosen):
        assert ids.tokens.tolist()[1:] == after([row, *PROMPT, 0], range(1, 15))


def test_a_position_beyond_the_row_is_refused(cells: Cells) -> None:
    model = trees_of(cells, capacity=8)
    one = np.zeros(1, dtype=np.int32)
    segment = Segment(
        0, one, one, one + 8, np.ones((1, 0), bool), np.ones((1, 1), bool), one, SamplingParams()
    )
    shown = ["position 8", "8 slots"]
    assert_refused(lambda: model.choose([segment]), shown, LimitExceeded)


def test_a_node_that_does_not_see_every_position_above_it_is_refused(cells: Cells) -> None:
    model = trees_of(cells)
    sequence = sequence_after(model, PROMPT)
    segment = sequence.prepare(siblings(1))
    context = segment.context.copy()
    context[0, 3] = False
    broken = segment._replace(context=context)
    assert_refused(lambda: model.choose([broken]), ["position"])


@pytest.mark.parametrize("vocabulary", [100, 5000])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(1.0, seed=2**62 + 5),
        SamplingParams(0.8, top_k=5, seed=3),
        SamplingParams(1.5, top_p=0.6, seed=2**40 + 9),
        SamplingParams(0.3, top_k=200, top_p=0.95, seed=1),
        SamplingParams(1.2, min_p=0.05, seed=2),
        SamplingParams(1.5, top_k=7, top_p=0.6, seed=4),
        SamplingParams(1.5, top_k=90, top_p=0.3, min_p=0.01, seed=5),
    ],
    ids=str,
)
def test_a_ranking_without_torch_is_the_contracts(params: SamplingParams, vocabulary: int) -> None:
    drawn = np.random.default_rng(7).standard_normal((6, vocabulary)) * 3
    logits, at = drawn.astype(np.float32), np.array([4, 5, 5, 6, 900, 70_000], dtype=np.int32)
    pick, sees = np.arange(6, dtype=np.int32), np.eye(6, dtype=np.bool_)
    segment = Segment(0, pick, pick, at - 1, sees[:1], sees, pick, params)
    ours = rank_of_row(logits, segment, 8)
    (theirs,) = rank_at(torch.from_numpy(logits[None]), torch.from_numpy(at[None]), [segment], 8)
    within = theirs.scores > -1e6  # beyond top-k and top-p the order is open
    assert ((ours.scores > -1e6) == within).all()
    assert (ours.ids == theirs.ids)[within].all()
    np.testing.assert_allclose(ours.scores, theirs.scores, rtol=1e-5, atol=2e-5)
    assert within[:, 0].all()
