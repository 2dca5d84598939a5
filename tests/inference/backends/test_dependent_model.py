"""A PARD-2 draft beside its target computes what the published definition says, from the states
that the target has, and from the last of them where it has none yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from inference.backends import Masks, Ranked
from inference.backends.eager import EagerModel
from inference.backends.led_sequence import RowFeatures
from inference.backends.pard import DependentModel, RenewedSequence
from inference.backends.sequence import ModelSequence
from inference.backends.shared_sequence import TargetRow
from inference.model.checkpoint import load_decoder
from inference.model.pard import load_projection
from inference.sampling import SamplingParams
from inference.tree import TokenTree
from tests.support.pard_files import PUBLISHED_STATES, Pair

PROMPT = np.random.default_rng(3).integers(0, 60, 20).tolist()
CAPACITY = 250


class Models:
    """A target and its draft, on rows that follow each other by number."""

    def __init__(self, pair: Pair, rows: int = 1) -> None:
        self.pair = pair
        target, draft = (
            load_decoder(
                directory, positions=CAPACITY, vocabulary=61, dtype=None, device=torch.device("cpu")
            )
            for directory in (pair.target, pair.draft)
        )
        self.target = EagerModel(target, rows=rows, capacity=CAPACITY, max_nodes=64)
        projection = load_projection(pair.draft / "warp_model.bin", draft, target)
        self.target.keep_features(projection.kept)
        self.draft = DependentModel(
            draft,
            projection,
            Masks(pair.mask, 3),
            rows=rows,
            capacity=CAPACITY,
            max_nodes=64,
        )

    def text(self, row: int, prompt: Sequence[int]) -> Text:
        return Text(self, row, prompt)


class Text:
    """One text on a row of both. tokens: the committed ones, the root included."""

    def __init__(self, models: Models, row: int, prompt: Sequence[int]) -> None:
        self.tokens, self.models = list(prompt), models
        self.there = ModelSequence(models.target, row, SamplingParams())
        self.there.extend(prompt[:-1])
        features = RowFeatures(models.target, lambda: TargetRow(row, self.there.slots))
        self.here = RenewedSequence(models.draft, row, SamplingParams(), features=features)
        self.here.extend(prompt[:-1])

    def agrees(self, ranked: Ranked, node: int, below: Sequence[int] = ()) -> None:
        """The 8 best are those of the reference, and as likely."""
        scores, order = self.models.pair.expected(self.tokens, below).topk(8)
        assert ranked.ids[node].tolist() == order.tolist()
        np.testing.assert_allclose(ranked.scores[node], scores, rtol=0, atol=5e-4)

    def commit(self, tree: TokenTree, path: Sequence[int], then: int) -> None:
        """The target takes a path of the tree, and says `then` behind it."""
        self.there.choose(tree)
        self.there.commit(tree, path)
        self.tokens += [*tree.tokens[list(path)].tolist(), then]

    def rank_root(self) -> Ranked:
        """Rank the root and three masks behind it."""
        masks = [self.models.pair.mask] * 3
        tree = TokenTree.chain([self.tokens[-1], *masks])
        ranked = self.here.rank(tree, range(4), 8)
        self.here.abandon()
        return ranked


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("pair"), (-1, -3), layers=3)


@pytest.mark.parametrize(
    ("states", "layers"),
    [(PUBLISHED_STATES, 23), (PUBLISHED_STATES, 26), ([-1], 2), ([0], 2), ([1, -1, 0], 2)],
    ids=str,
)
def test_a_root_and_its_masks_read_the_states_before_the_root(
    tmp_path: Path, states: Sequence[int], layers: int
) -> None:
    pair = Pair(tmp_path, states, layers)
    text = Models(pair).text(0, PROMPT)
    ranked = text.rank_root()
    for offset in range(4):
        text.agrees(ranked, offset, [pair.mask] * offset)


def test_a_projection_may_have_a_bias(tmp_path: Path) -> None:
    text = Models(Pair(tmp_path, [-1], 2, biased=True)).text(0, PROMPT)
    text.agrees(text.rank_root(), 0)


def test_a_prompt_that_is_fed_in_parts_reads_the_same_states(pair: Pair) -> None:
    text = Models(pair).text(0, (PROMPT * 8)[:150])
    text.agrees(text.rank_root(), 0)


@pytest.mark.parametrize("calls", [[[0], [1, 2], [3]], [[0, 1, 2, 3]]], ids=["by level", "at once"])
def test_candidates_read_the_states_before_the_root(pair: Pair, calls: list[list[int]]) -> None:
    text = Models(pair).text(0, PROMPT)
    tree = TokenTree([PROMPT[-1], 40, 50, 60], [-1, 0, 0, 2])
    for nodes in calls:
        ranked = text.here.rank(tree, nodes, 8)
        for index, node in enumerate(nodes):
            text.agrees(ranked, index, [[], [40], [50], [50, 60]][node])


@pytest.mark.parametrize("ranked", [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]])
def test_candidates_that_were_committed_are_computed_again(pair: Pair, ranked: list[int]) -> None:
    """With the states that the target has of them by now."""
    text = Models(pair).text(0, PROMPT)
    tree = TokenTree.chain([PROMPT[-1], 40, 50, 51])
    for node in ranked:
        text.here.rank(tree, [node], 8)
    text.commit(tree, [1, 2, 3], 30)
    text.here.advance(ranked, [PROMPT[-1], 40, 50, 51], [])
    answer = text.rank_root()
    text.agrees(answer, 0)
    text.agrees(answer, 1, [pair.mask])


def test_rows_of_one_call_are_ranked_as_each_alone(pair: Pair) -> None:
    models = Models(pair, rows=2)
    texts = [models.text(row, (PROMPT * 2)[:length]) for row, length in enumerate((9, 33))]
    trees = [TokenTree.chain([texts[0].tokens[-1], 4]), TokenTree.chain(texts[1].tokens[-1:])]
    answers = models.draft.rank(
        [
            text.here.prepare_nodes(tree, range(len(tree)))
            for text, tree in zip(texts, trees, strict=True)
        ],
        8,
    )
    texts[0].agrees(answers[0], 0)
    texts[0].agrees(answers[0], 1, [4])
    texts[1].agrees(answers[1], 0)


def test_a_text_of_one_token_has_no_states_before_it(pair: Pair) -> None:
    text = Models(pair).text(0, PROMPT[:1])
    ranked = text.rank_root()
    text.agrees(ranked, 0)
    text.agrees(ranked, 1, [pair.mask])


def test_a_call_that_is_not_led_is_computed_without_states(pair: Pair) -> None:
    """As when calls are timed before anybody is served."""
    text = Models(pair).text(0, PROMPT[:1])
    segment = ModelSequence(text.models.draft, 0, SamplingParams()).prepare_nodes(
        TokenTree.chain(PROMPT[:1]), [0]
    )
    text.agrees(text.models.draft.rank([segment], 8)[0], 0)
