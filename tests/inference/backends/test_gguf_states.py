"""Running states in llama.cpp, on a context that can be computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from inference.backends.gguf.library import SEQUENCES
from inference.backends.gguf.states import GgufStates
from inference.backends.libraries.tree_lines import BEHIND
from inference.backends.sequence import ModelSequence
from inference.errors import Unavailable
from inference.sampling import SamplingParams
from inference.tree.token_tree import TokenTree
from tests.support.gguf_models import VOCABULARY, StateCells, logits_after, model_of, seen_after
from tests.support.models import sequence_after
from tests.support.refusals import assert_refused

PROMPT: list[int] = np.random.default_rng(4).integers(0, VOCABULARY, 34).tolist()
CAPACITY, NODES = 176, 32


def cells_of(rows: int = 1) -> StateCells:
    sizes = GgufStates.sizes(rows, CAPACITY, NODES, SEQUENCES)
    return StateCells(room=sizes.cells, sequences=sizes.sequences)


def after(cells: StateCells, text: list[int], rows: int = 1) -> ModelSequence:
    states = GgufStates(cells, rows=rows, capacity=CAPACITY, batch=64)
    return sequence_after(model_of(states, NODES), text)


def own(text: list[int], tokens: list[int]) -> list[int]:
    """The choices behind each of these tokens, after a text."""
    seen = [seen_after([*text, *tokens[: at + 1]], 0) for at in range(len(tokens))]
    return [int(logits_after(one)[:VOCABULARY].argmax()) for one in seen]


def computed(cells: StateCells, sequence: ModelSequence, text: list[int], accepted: int) -> int:
    """Choose at a chain of three, whose first nodes are accepted; return the tokens computed."""
    before, chain = cells.tokens, [5, 6, 7]
    assert sequence.choose(TokenTree.chain(chain)).tolist() == own(text, chain)
    sequence.commit(TokenTree.chain(chain), list(range(1, accepted)))
    text += chain[:accepted]
    return cells.tokens - before


def test_a_chain_that_is_accepted_is_never_computed_again() -> None:
    cells = cells_of()
    sequence, text = after(cells, PROMPT), list(PROMPT)
    assert [computed(cells, sequence, text, 3) for _ in range(8)] == [3] * 8


def test_behind_nodes_that_are_not_accepted_a_few_tokens_are_computed_again() -> None:
    """And never more than once in a while: a text that grew by BEHIND tokens is kept."""
    cells = cells_of()
    sequence, text = after(cells, PROMPT), list(PROMPT)
    calls = [computed(cells, sequence, text, 2) for _ in range(24)]
    assert max(calls) <= 3 + 2 * BEHIND
    assert sum(calls) < 24 * (3 + BEHIND)


def test_a_tree_of_more_lines_than_there_are_sequences_is_computed_by_several_decodes() -> None:
    cells = cells_of()
    sequence = after(cells, PROMPT)
    leaves = list(range(1, 21))
    tree = TokenTree(np.array([0, *leaves]), np.array([-1] + [0] * len(leaves)))
    chosen = sequence.choose(tree).tolist()
    assert chosen[1:] == [own(PROMPT, [0, leaf])[1] for leaf in leaves]


def test_a_text_that_is_cut_is_computed_from_a_text_that_was_kept() -> None:
    cells = cells_of()
    sequence, text = after(cells, PROMPT), list(PROMPT)
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
        sequence = after(cells, (PROMPT * 4)[:length])
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
    model = after(cells, text[: end + 8], rows=2).model
    second = sequence_after(model, text[:end], 1)
    for at in range(end, end + 12):
        second.choose(TokenTree.chain([text[at], 1, 2]))
        second.commit(TokenTree.chain([text[at], 1, 2]), [])
    sequence_after(model, PROMPT[:16] * 10, 0)
    assert cells.used < 2 * CAPACITY


def test_a_row_that_was_copied_computes_nothing_again() -> None:
    cells = cells_of(rows=2)
    sequence = after(cells, PROMPT, rows=2)
    before = cells.used, cells.tokens
    sequence.model.copy_row(0, 1, len(PROMPT))
    copy = ModelSequence(sequence.model, 1, SamplingParams(), sequence.slots.committed_copy())
    sequence.slots.trim(0)
    assert copy.choose(TokenTree.chain([9])).tolist() == own(PROMPT, [9])
    assert (cells.used, cells.tokens) == (before[0] + 1, before[1] + 1)


@pytest.mark.parametrize("text", [PROMPT, PROMPT[:3]])
def test_a_failed_decode_is_an_error_and_changes_nothing_in_the_next_call(text: list[int]) -> None:
    cells = cells_of()
    sequence, chain = after(cells, text), TokenTree.chain([5, 6, 7])
    for _ in range(40):  # more often than there are sequences
        cells.fails = True
        assert_refused(lambda: sequence.choose(chain), ["made to fail"], Unavailable)
    assert cells.used == len(text)
    assert sequence.choose(chain).tolist() == own(text, [5, 6, 7])
