"""The trial of a GGUF model's trees, on contexts that can be computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from inference.backends.gguf.library import TokenBatch
from inference.backends.gguf.model import GgufModel, check_trees
from inference.backends.gguf.trees import GgufTrees
from inference.tree.token_tree import TokenTree
from tests.support.gguf_models import VOCABULARY, Cells, logits_after, model_of, seen_after
from tests.support.models import sequence_after

PROMPT = [3, 1, 4, 1, 5]


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
    paths = [[*PROMPT, 9], [*PROMPT, 9, 2], [*PROMPT, 9, 6]]
    assert chosen == [int(logits_after(seen_after(one, 0))[:VOCABULARY].argmax()) for one in paths]
