"""Slots, masks, rows and states as sequences of llama.cpp, on contexts computed by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from inference.backends import Segment
from inference.backends.eager import rank_at
from inference.backends.gguf.library import SEQUENCES, TokenBatch
from inference.backends.gguf.model import GgufModel, check_trees
from inference.backends.gguf.states import GgufStates
from inference.backends.gguf.trees import BranchSequences, GgufTrees
from inference.backends.libraries.host_choice import rank_of_row
from inference.backends.libraries.tree_lines import BEHIND
from inference.backends.sequence import ModelSequence
from inference.errors import LimitExceeded, Unavailable
from inference.sampling import SamplingParams
from inference.tree.token_tree import TokenTree
from tests.support.gguf_models import (
    VOCABULARY,
    Cells,
    StateCells,
    choice_after,
    logits_after,
    model_of,
    seen_after,
)
from tests.support.models import SAMPLINGS, sequence_after
from tests.support.refusals import assert_refused

PROMPT: list[int] = np.random.default_rng(4).integers(0, VOCABULARY, 34).tolist()


def trees_of(cells: Cells, rows: int = 1, capacity: int = 176, batch: int = 256) -> GgufModel:
    return model_of(GgufTrees(cells, rows=rows, capacity=capacity, batch=batch), max_nodes=32)


def siblings(count: int) -> TokenTree:
    return TokenTree(
        np.arange(count + 1, dtype=np.int32), np.array([-1] + [0] * count, dtype=np.int32)
    )


def after(prefix: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """The choices behind a prefix and each of these tokens."""
    return [choice_after([*prefix, token]) for token in tokens]


@pytest.fixture
def cells() -> Cells:
    return Cells()


def test_keys_are_kept_and_a_forward_computes_its_new_nodes_only(cells: Cells) -> None:
    sequence = sequence_after(trees_of(cells), PROMPT)
    before = cells.tokens
    sequence.choose(siblings(5))
    assert cells.tokens - before == 6
    assert cells.used == len(PROMPT) + 6


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


def test_a_node_beyond_the_row_or_that_does_not_see_all_above_it_is_refused(cells: Cells) -> None:
    sequence = sequence_after(trees_of(cells, capacity=40), PROMPT)
    segment = sequence.prepare(siblings(1))
    context = segment.context.copy()
    context[0, 3] = False
    choose = sequence.model.choose
    beyond = segment._replace(positions=segment.positions + 5)
    assert_refused(lambda: choose([beyond]), ["position 40", "40 slots"], LimitExceeded)
    broken = segment._replace(context=context)
    assert_refused(lambda: choose([broken]), ["position"])


@pytest.mark.parametrize("vocabulary", [100, 5000])
@pytest.mark.parametrize(
    "params",
    [
        *SAMPLINGS,
        SamplingParams(0.3, top_k=200, top_p=0.95, seed=1),
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


CAPACITY, NODES = 176, 32


def cells_of(rows: int = 1) -> StateCells:
    sizes = GgufStates.sizes(rows, CAPACITY, NODES, SEQUENCES)
    return StateCells(room=sizes.cells, sequences=sizes.sequences)


def with_states(cells: StateCells, text: list[int], rows: int = 1) -> ModelSequence:
    states = GgufStates(cells, rows=rows, capacity=CAPACITY, batch=64)
    return sequence_after(model_of(states, NODES), text)


def own(text: list[int], tokens: list[int]) -> list[int]:
    """The choices behind each of these tokens, after a text."""
    return [choice_after([*text, *tokens[: at + 1]]) for at in range(len(tokens))]


def computed(cells: StateCells, sequence: ModelSequence, text: list[int], accepted: int) -> int:
    """Choose at a chain of three, whose first nodes are accepted; return the tokens computed."""
    before, chain = cells.tokens, [5, 6, 7]
    assert sequence.choose(TokenTree.chain(chain)).tolist() == own(text, chain)
    sequence.commit(TokenTree.chain(chain), list(range(1, accepted)))
    text += chain[:accepted]
    return cells.tokens - before


def test_a_chain_that_is_accepted_is_never_computed_again() -> None:
    cells = cells_of()
    sequence, text = with_states(cells, PROMPT), list(PROMPT)
    assert [computed(cells, sequence, text, 3) for _ in range(8)] == [3] * 8


def test_behind_nodes_that_are_not_accepted_a_few_tokens_are_computed_again() -> None:
    """And never more than once in a while: a text that grew by BEHIND tokens is kept."""
    cells = cells_of()
    sequence, text = with_states(cells, PROMPT), list(PROMPT)
    calls = [computed(cells, sequence, text, 2) for _ in range(24)]
    assert max(calls) <= 3 + 2 * BEHIND
    assert sum(calls) < 24 * (3 + BEHIND)


def test_a_tree_of_more_lines_than_there_are_sequences_is_computed_by_several_decodes() -> None:
    cells = cells_of()
    sequence = with_states(cells, PROMPT)
    assert sequence.choose(siblings(20)).tolist()[1:] == after([*PROMPT, 0], range(1, 21))


def test_a_text_that_is_cut_is_computed_from_a_text_that_was_kept() -> None:
    cells = cells_of()
    sequence, text = with_states(cells, PROMPT), list(PROMPT)
    for start in range(0, 120, 6):
        chain = list(range(start % 40, start % 40 + 6))
        sequence.choose(TokenTree.chain(chain))
        sequence.commit(TokenTree.chain(chain), list(range(1, 6)))
        text += chain
    before, slots = cells.tokens, sequence.slots
    slots.trim(len(PROMPT) + 50)
    again = ModelSequence(sequence.model, 0, SamplingParams(), slots.committed_copy())
    assert again.choose(TokenTree.chain([9])).tolist() == own(text[: len(PROMPT) + 50], [9])
    assert cells.tokens - before < len(PROMPT) + 50


def test_branches_beside_a_long_one_compute_little_again() -> None:
    """Wherever the text was kept before: where the branches began is kept, too."""
    for length in range(60, 120, 7):
        cells, branch = cells_of(), [-1, *range(12)]
        sequence = with_states(cells, (PROMPT * 4)[:length])
        tree = TokenTree(*np.array([range(25), [*branch, *[0] * 12]], dtype=np.int32))
        sequence.rank(tree, [0], 2)
        for at in range(1, 13, 2):
            sequence.rank(tree, [at], 2)
            sequence.rank(tree, [at + 1], 2)
            before = cells.tokens
            sequence.rank(tree, [at + 12, at + 13], 2)
            if at > 1:  # what the first branches begin with may be far behind
                assert cells.tokens - before <= 2 * (1 + BEHIND)


def test_rows_of_one_text_hold_no_keys_of_each_other() -> None:
    """Else a row that went on in two ways of computing one text held it twice, and another row's
    next text found no room."""
    text, end = np.random.default_rng(1).integers(0, VOCABULARY, CAPACITY).tolist(), CAPACITY - 24
    cells = cells_of(rows=2)
    model = with_states(cells, text[: end + 8], rows=2).model
    second = sequence_after(model, text[:end], 1)
    for at in range(end, end + 12):
        second.choose(TokenTree.chain([text[at], 1, 2]))
        second.commit(TokenTree.chain([text[at], 1, 2]), [])
    sequence_after(model, PROMPT[:16] * 10, 0)
    assert cells.used < 2 * CAPACITY


def test_a_row_that_was_copied_computes_nothing_again() -> None:
    cells = cells_of(rows=2)
    sequence = with_states(cells, PROMPT, rows=2)
    before = cells.used, cells.tokens
    sequence.model.copy_row(0, 1, len(PROMPT))
    copy = ModelSequence(sequence.model, 1, SamplingParams(), sequence.slots.committed_copy())
    sequence.slots.trim(0)
    assert copy.choose(TokenTree.chain([9])).tolist() == own(PROMPT, [9])
    assert (cells.used, cells.tokens) == (before[0] + 1, before[1] + 1)


@pytest.mark.parametrize("text", [PROMPT, PROMPT[:3]])
@pytest.mark.parametrize("branches", [True, False])
def test_a_failed_decode_is_an_error_and_changes_nothing(text: list[int], branches: bool) -> None:
    chain, states = TokenTree.chain([5, 6, 7]), cells_of()
    cells = Cells() if branches else states
    sequence = sequence_after(trees_of(cells), text) if branches else with_states(states, text)
    for _ in range(40):  # more often than there are sequences
        cells.fails = True
        assert_refused(lambda: sequence.choose(chain), ["made to fail"], Unavailable)
    assert cells.used == len(text)
    assert sequence.choose(chain).tolist() == own(text, [5, 6, 7])


class StateOfTheCall(Cells):
    """A context that computes a call's tokens one after another, whatever their sequences are."""

    def decode(self, batch: TokenBatch) -> NDArray[np.float32]:
        super().decode(batch)
        tokens = [batch.tokens[: at + 1].tolist() for at in np.flatnonzero(batch.picked)]
        return np.array([logits_after(seen_after(seen, 0)) for seen in tokens])


class NoPositions(Cells):
    """A context whose logits are those of a token's position in the call."""

    def decode(self, batch: TokenBatch) -> NDArray[np.float32]:
        super().decode(batch)
        return np.array([logits_after(int(at)) for at in np.flatnonzero(batch.picked)])


def tried(cells: Cells) -> GgufModel:
    check_trees(cells, GgufTrees, VOCABULARY, float32=True)
    return model_of(GgufTrees(cells, rows=1, capacity=64, batch=256), max_nodes=32)


@pytest.mark.parametrize("context", [StateOfTheCall, NoPositions])
def test_a_context_that_follows_no_branches_is_refused(context: type[Cells]) -> None:
    with pytest.raises(ValueError, match="masks"):
        tried(context())


def test_a_trial_takes_four_small_decodes_and_changes_no_text_after_it() -> None:
    cells = Cells()
    model = tried(cells)
    assert (cells.decodes, cells.tokens) == (4, 20)
    tree = TokenTree(np.array([9, 2, 6], dtype=np.int32), np.array([-1, 0, 0], dtype=np.int32))
    chosen = sequence_after(model, PROMPT).choose(tree).tolist()
    assert chosen == after(PROMPT, [9]) + after([*PROMPT, 9], [2, 6])
