"""A head computes what its definition says, from the target's features and from its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from inference.backends import Ranked
from inference.backends.eager import EagerModel
from inference.backends.eagle_model import EagleModel, FeatureSequence
from inference.backends.sequence import ModelSequence, TargetRow
from inference.model.choice.sampler import Sampling, rank
from inference.model.eagle_head import OfTarget, read_head
from inference.sampling import SamplingParams
from inference.tree.token_tree import TokenTree
from tests.support import heads, pairs

TARGET = pairs.decoder(1)
IDS = [7 * index % TARGET.config.vocab_size for index in range(heads.DRAFT_VOCABULARY)]
PROMPT = pairs.prompt_of(20)


class Pair:
    """A target and its head of so many layers, on rows that follow each other by number."""

    def __init__(
        self, directory: Path, rows: int = 1, norms_residual: bool = False, layers: int = 1
    ) -> None:
        raw = heads.raw_config(
            TARGET.config, norm_before_residual=norms_residual, num_hidden_layers=layers
        )
        self.tensors = heads.tensors_of(TARGET.config, depth=layers)
        self.norms_residual = norms_residual
        self.target = EagerModel(TARGET, rows=rows, capacity=200, max_nodes=64)
        self.target.keep_features(heads.KEPT)
        head = read_head(heads.write_head(directory, raw, self.tensors), OfTarget.of(TARGET), 200)
        self.model = EagleModel(head, rows=rows, capacity=200, max_nodes=64)

    def text(self, row: int, prompt: Sequence[int]) -> Text:
        return Text(self, row, prompt)


class Text:
    """One text on a row of both. tokens: the committed ones, the root included."""

    def __init__(self, pair: Pair, row: int, prompt: Sequence[int]) -> None:
        self.tokens, self.pair = list(prompt), pair
        self.there = ModelSequence(pair.target, row, SamplingParams())
        self.here = FeatureSequence(
            pair.target, pair.model, row, lambda: TargetRow(row, self.there.slots), SamplingParams()
        )
        self.there.extend(prompt[:-1])
        self.here.extend(prompt[:-1])

    def expected(self, below: Sequence[int] = ()) -> torch.Tensor:  # [draft vocabulary]
        known = len(self.tokens) - 1
        states = heads.states_of(TARGET, self.tokens[:known])
        return heads.drafted(
            self.pair.tensors,
            TARGET.model.embed_tokens.weight,
            states,
            [*self.tokens, *below],
            known,
            self.pair.norms_residual,
        )

    def commit(self, tree: TokenTree, path: Sequence[int], then: int) -> None:
        """The target takes a path of the tree, and says `then` behind it."""
        self.there.choose(tree)
        self.there.commit(tree, path)
        self.here.commit(tree, path)
        self.tokens += [*tree.tokens[list(path)].tolist(), then]


def agrees(ranked: Ranked, node: int, expected: torch.Tensor) -> None:
    scores, order = expected.topk(8)
    assert ranked.ids[node].tolist() == [IDS[index] for index in order.tolist()]
    np.testing.assert_allclose(ranked.scores[node], scores, rtol=0, atol=2e-4)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("norms_residual", [False, True])
@pytest.mark.parametrize("calls", [[[0], [1, 2], [3]], [[0, 1, 2, 3]]], ids=["by level", "at once"])
def test_candidates_are_ranked_from_what_the_head_returned_for_their_parents(
    tmp_path: Path, calls: list[list[int]], norms_residual: bool, layers: int
) -> None:
    """And the root from the target's features, also those of a prompt that is fed in parts."""
    pair = Pair(tmp_path, norms_residual=norms_residual, layers=layers)
    for prompt in (PROMPT, pairs.prompt_of(150)):
        text = pair.text(0, prompt)
        tree = TokenTree(*np.array([[prompt[-1], 40, 50, 60], [-1, 0, 0, 2]]))
        ranked = {
            node: (answer, index)
            for nodes in calls
            for answer in [text.here.rank(tree, nodes, 8)]
            for index, node in enumerate(nodes)
        }
        for node, below in enumerate([[], [40], [50], [50, 60]]):
            agrees(*ranked[node], text.expected(below))


@pytest.mark.parametrize("ranked", [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]])
def test_committed_tokens_are_computed_from_target_features(
    tmp_path: Path, ranked: list[int]
) -> None:
    """Whether the head had computed them as candidates or not."""
    text = Pair(tmp_path).text(0, PROMPT)
    tree = TokenTree.chain([PROMPT[-1], 40, 50, 60])
    for node in ranked:
        text.here.rank(tree, [node], 8)
    text.commit(tree, [1, 2, 3], 70)
    agrees(text.here.rank(TokenTree.chain([70]), [0], 8), 0, text.expected())
    text.commit(TokenTree.chain([70]), [], 80)
    below = TokenTree.chain([80, 41, 42])
    answer = text.here.rank(below, [0, 1, 2], 8)
    for node in range(3):
        agrees(answer, node, text.expected([41, 42][:node]))


def test_a_root_that_was_a_candidate_leads_with_the_targets_feature(tmp_path: Path) -> None:
    text = Pair(tmp_path).text(0, PROMPT)
    tree = TokenTree.chain([PROMPT[-1], 40, 50])
    text.here.rank(tree, [0], 8)
    text.here.rank(tree, [1], 8)
    text.there.choose(TokenTree.chain(PROMPT[-1:]))
    text.there.commit(TokenTree.chain(PROMPT[-1:]), [])
    text.tokens.append(40)
    text.here.advance([0], [PROMPT[-1]], [])
    kept = TokenTree.chain([0, 40, 50])
    segment = text.here.prepare_nodes(_Deeper(kept), [2])
    agrees(text.pair.model.rank([segment], 8)[0], 0, text.expected([50]))


class _Deeper:
    """A tree whose node 1 has become the root."""

    def __init__(self, tree: TokenTree) -> None:
        self.tokens, self.parents, self.depths = tree.tokens, [-1, -1, 1], [0, 0, 1]


def test_rows_of_one_call_are_ranked_as_each_alone(tmp_path: Path) -> None:
    pair = Pair(tmp_path, rows=2)
    texts = [pair.text(row, pairs.prompt_of(length)) for row, length in enumerate((9, 33))]
    trees = [TokenTree.chain([texts[0].tokens[-1], 4]), TokenTree.chain(texts[1].tokens[-1:])]
    answers = pair.model.rank(
        [
            text.here.prepare_nodes(tree, range(len(tree)))
            for text, tree in zip(texts, trees, strict=True)
        ],
        8,
    )
    agrees(answers[0], 0, texts[0].expected())
    agrees(answers[0], 1, texts[0].expected([4]))
    agrees(answers[1], 0, texts[1].expected())


@pytest.mark.parametrize("params", [SamplingParams(0.7, seed=5), SamplingParams(1.0, 20, 0.9, 6)])
def test_children_have_the_noise_of_the_targets_ids(tmp_path: Path, params: SamplingParams) -> None:
    text = Pair(tmp_path).text(0, PROMPT)
    segment = text.here.prepare_nodes(TokenTree.chain(PROMPT[-1:]), [0])
    answer = text.pair.model.rank([segment._replace(params=params)], 8)[0]
    logits = torch.full((1, 1, pairs.VOCABULARY), -1e30)
    logits[0, 0, IDS] = text.expected()
    positions = torch.tensor([[len(PROMPT)]], dtype=torch.int32)
    ids, scores = rank(logits, Sampling.of([params], torch.device("cpu")), positions, 8)
    assert answer.ids.tolist() == ids[0].tolist()
    np.testing.assert_allclose(answer.scores, scores[0], rtol=0, atol=2e-4)


def test_a_text_of_one_token_is_drafted_for_without_any_feature(tmp_path: Path) -> None:
    text = Pair(tmp_path).text(0, PROMPT[:1])
    tree = TokenTree.chain([PROMPT[0], 40])
    assert np.isfinite(text.here.rank(tree, [0, 1], 8).scores).all()
    text.commit(tree, [1], 50)
    agrees(text.here.rank(TokenTree.chain([50]), [0], 8), 0, text.expected())
