"""The contract of a Model with rows of its own. A backend joins by a line of BACKENDS."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from inference.backends import Model
from inference.backends.eagle_model import FeatureModel
from inference.backends.sequence import ModelSequence
from inference.drafters.round_proposer import BestFirst, Chain, RoundProposer
from inference.engine.sessions.local_session import LocalSession
from inference.errors import InvalidRequest, LimitExceeded, OutriderError
from inference.loop.decode import Step
from inference.proposer import Proposer
from inference.sampling import SamplingParams
from tests.support import heads
from tests.support.backends import BACKENDS, Subject, eager_model, ranks, takes_trees
from tests.support.equality import assert_rows_are_independent
from tests.support.models import SAMPLINGS, segment, tiny_decoder
from tests.support.neuron_artifacts import LENGTH, TREE, VOCABULARY, engine_of
from tests.support.pairs import alone, copying, growing, nudged, rounds, speculated

each_sampling = pytest.mark.parametrize("params", SAMPLINGS, ids=str)
each_temperature = pytest.mark.parametrize("params", SAMPLINGS[:3], ids=str)


def prompt_of(length: int) -> list[int]:
    prompt: list[int] = np.random.default_rng(length).integers(0, VOCABULARY, length).tolist()
    return prompt


# --- texts

CLOSE = nudged(tiny_decoder(vocabulary=VOCABULARY))
"""It often agrees with the checkpoint, not always, and never with llama.cpp's stand-in."""


DRAFTS: dict[str, Callable[[], Proposer]] = {
    "a chain": lambda: rounds(CLOSE, Chain(6)),
    "an unrelated chain": lambda: rounds(tiny_decoder(99, VOCABULARY), Chain(3)),
    "a tree": lambda: rounds(CLOSE, BestFirst(TREE - 1, 3)),
    "growing": lambda: growing(CLOSE),
    "copies": copying,
}


@pytest.mark.covering(1)
@each_sampling
def test_the_text_is_its_own_seeded_decoding(subject: Subject, params: SamplingParams) -> None:
    """Also on rows that held other texts, and to the end of the row."""
    engine = engine_of(subject.model)
    for length, tokens in ((1, 16), (30, 16), (17, 8), (LENGTH - 5, 5)):
        subject.writes_its_own(
            prompt_of(length),
            params,
            tokens,
            lambda prompt, n: alone(LocalSession(engine), prompt, params, n),
        )


def takes(subject: str, draft: str) -> bool:
    """Whether a backend takes what a draft proposes."""
    return BACKENDS[subject].trees or draft.endswith("chain")


@pytest.mark.covering(2)
@pytest.mark.possible(takes, "subject", "draft")
@each_sampling
@pytest.mark.parametrize("draft", DRAFTS)
def test_no_draft_changes_the_text(subject: Subject, draft: str, params: SamplingParams) -> None:
    engine, proposer = engine_of(subject.model), DRAFTS[draft]()
    for length in (1, 30):  # the second text finds the first one's row
        subject.writes_its_own(
            prompt_of(length),
            params,
            16,
            lambda prompt, n: speculated(LocalSession(engine), proposer, prompt, params, n),
        )


# --- calls

PREFIX = list(range(20, 30))


@pytest.mark.covering(1)
@pytest.mark.possible(takes_trees, "subject")
@each_sampling
def test_nodes_and_rows_are_independent(subject: Subject, params: SamplingParams) -> None:
    """To the last bit of the keys, where the model has its caches on this machine."""
    cache = getattr(subject.model, "cache", None)
    assert_rows_are_independent(subject.model, cache, TREE, VOCABULARY, params)


@pytest.mark.possible(takes_trees, "subject")
@pytest.mark.covering(1)
@pytest.mark.parametrize("mixture", [(0, 2), (2, 3), (3, 4), (2, 1), (4, 0)], ids=str)
def test_rows_of_one_call_keep_their_sampling(subject: Subject, mixture: tuple[int, int]) -> None:
    tree, _, _ = subject.trees
    sequences = [
        subject.after(prompt_of(7 + 9 * row), row, SAMPLINGS[number])
        for row, number in enumerate(mixture)
    ]
    by_itself = [one.choose(tree).tolist() for one in sequences]
    for turn in (1, -1):  # in either order of rows
        call = [one.prepare(tree) for one in sequences][::turn]
        together = [chosen.tokens.tolist() for chosen in subject.model.choose(call)][::turn]
        assert together == by_itself


def test_a_tree_chosen_again_chooses_the_same(subject: Subject) -> None:
    """Another tree of the row, and another row where there is one, do not matter."""
    tree, then, paths = subject.trees
    held = subject.after(prompt_of(30), subject.model.rows - 1)
    first, before = held.choose(tree).tolist(), subject.answers(held, tree)
    assert held.choose(then).shape == (4,)
    assert held.choose(tree).tolist() == first
    if subject.model.rows > 1:
        other = subject.after(PREFIX, 0)
        other.choose(tree)
        other.commit(tree, paths[-1])
        other.choose(then)
    held.abandon()
    np.testing.assert_array_equal(subject.answers(held, tree), before)


@pytest.mark.covering(1)
@each_temperature
def test_a_partly_accepted_tree_is_like_a_prompt(subject: Subject, params: SamplingParams) -> None:
    tree, then, paths = subject.trees
    for path in paths:
        tokens, sequence = list(PREFIX), subject.after(PREFIX, 0, params)
        for _ in range(3):  # the third tree lies in the holes of the two before it
            sequence.choose(tree)
            sequence.commit(tree, path)
            tokens += tree.tokens[[0, *path]].tolist()
        assert sequence.length == sequence.cached == len(tokens)
        found = subject.answers(sequence, then)
        fresh = subject.answers(subject.after(tokens, 0, params), then)
        np.testing.assert_allclose(found, fresh, rtol=0, atol=2e-5)


@pytest.mark.possible(takes_trees, "subject")
@pytest.mark.covering(1)
@each_temperature
def test_a_copy_of_a_row_goes_on_alone(subject: Subject, params: SamplingParams) -> None:
    """Behind holes, while the other one computes a tree: as a row does that was fed the text."""
    tree, then, paths = subject.trees
    sequence, tokens = subject.after(prompt_of(30), 0, params), prompt_of(30)
    for path in (paths[-1], paths[-2]):
        sequence.choose(tree)
        sequence.commit(tree, path)
        tokens += tree.tokens[[0, *path]].tolist()
    sequence.prepare(tree)
    slots = sequence.slots.committed_copy()
    subject.model.copy_row(0, 1, slots.high_water)
    copy = ModelSequence(subject.model, 1, params, slots)
    sequence.abandon()
    sequence.choose(tree)
    sequence.commit(tree, paths[-1])
    found = subject.answers(copy, then)
    fresh = subject.answers(subject.after(tokens, 0, params), then)
    np.testing.assert_allclose(found, fresh, rtol=0, atol=2e-5)


def test_a_call_computes_as_much_as_was_asked_or_more(subject: Subject) -> None:
    for rows in range(1, subject.model.rows + 1):
        for nodes in range(1, TREE + 1):
            computed = subject.model.padded(rows, nodes)
            assert computed[0] >= rows
            assert computed[1] >= nodes


def test_features_are_an_eager_targets_and_go_with_a_copied_row(subject: Subject) -> None:
    model = subject.model
    if not isinstance(model, FeatureModel):
        pytest.skip("it keeps no features")
    assert subject.decoder is not None
    theirs = eager_model(subject.decoder)
    for layers in (heads.KEPT, (0, 2)):
        ours, expected = (heads.kept_of_a_text(each, layers, 1) for each in (model, theirs))
        torch.testing.assert_close(ours, expected, atol=2e-5, rtol=1e-4)
    model.copy_row(1, 0, 20)
    slots = np.arange(20, dtype=np.int32)
    assert model.features(0, slots).equal(model.features(1, slots))


# --- ranking


@pytest.mark.covering(1)
@pytest.mark.possible(ranks, "subject")
@each_sampling
def test_the_first_child_is_the_targets_choice(subject: Subject, params: SamplingParams) -> None:
    """Best first, each once; fewer are the first of more; level by level as all at once."""
    (tree, _, _), sequence = subject.trees, subject.after(PREFIX, 0, params)
    chosen = sequence.choose(tree)
    sequence.abandon()
    ranked = sequence.rank(tree, range(len(tree)), 8)
    assert ranked.ids[:, 0].tolist() == chosen.tolist()
    assert (np.diff(ranked.scores, axis=1) <= 0).all()
    assert all(len(set(row)) == 8 for row in ranked.ids.tolist())
    sequence.abandon()
    for level in ([0], [1, 2], [3, 4, 6], [5, 7]):
        found = sequence.rank(tree, level, 2)
        np.testing.assert_array_equal(found.ids, ranked.ids[level, :2])
        np.testing.assert_allclose(found.scores, ranked.scores[level, :2], rtol=0, atol=2e-5)


@pytest.mark.covering(1)
@pytest.mark.possible(ranks, "subject")
@each_temperature
def test_a_draft_of_the_same_weights_is_right(subject: Subject, params: SamplingParams) -> None:
    steps, draft = list[Step](), subject.backend.make(subject.machine)
    proposer = RoundProposer(draft, Chain(4), room=8)
    speculated(
        LocalSession(engine_of(subject.model)), proposer, prompt_of(9), params, 20, steps.append
    )
    assert [len(step.tokens) for step in steps if step.tokens] == [5] * 4


# --- refusals


Refusal = tuple[Callable[[Model], object], type[OutriderError], str]
REFUSED: list[Refusal] = [
    (lambda model: model.choose([segment(0, model.max_nodes + 1)]), LimitExceeded, "{} nodes"),
    (lambda model: model.choose([segment(0, 2), segment(0, 2)]), InvalidRequest, "twice"),
]
NO_DRAFT: Refusal = (lambda model: model.rank([segment(0, 2)], 2), InvalidRequest, "cannot draft")


def test_a_call_that_it_does_not_take_is_refused_and_the_next_is_answered(subject: Subject) -> None:
    tree, _, _ = subject.trees
    before = subject.after(PREFIX).choose(tree).tolist()
    for call, error, shown in [*REFUSED, *([] if subject.backend.drafts else [NO_DRAFT])]:
        with pytest.raises(error, match=shown.format(subject.model.max_nodes + 1)):
            call(subject.model)
        assert subject.after(PREFIX).choose(tree).tolist() == before
