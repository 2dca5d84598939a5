"""The contract of a Model that takes rules, and reports log-probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from inference.backends import Scoring
from inference.sampling import SamplingParams
from inference.token_rule import Adjustment
from tests.support.backends import Subject
from tests.support.neuron_artifacts import VOCABULARY

PREFIX = list(range(20, 30))


def needs(ability: bool) -> None:
    if not ability:
        pytest.skip("this backend does not do it")


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_rule_decides_at_each_node_and_is_seen_in_log_probabilities(
    subject: Subject, temperature: float
) -> None:
    """A mask of one token, then a bias beyond all others; the calls after it are as before."""
    needs(subject.model.masks)
    (tree, _, _), sequence = subject.trees, subject.after(PREFIX, 0, SamplingParams(temperature))
    before = subject.answers(sequence, tree)
    ids = np.arange(30, 30 + len(tree), dtype=np.int32)[:, None]
    allowed = np.zeros((len(tree), -(-VOCABULARY // 32)), dtype=np.int32)
    np.put_along_axis(allowed, ids >> 5, 1 << (ids & 31), axis=1)
    ones, none = np.ones(ids.shape, dtype=np.float32), np.zeros(ids.shape, dtype=np.float32)
    for rule in (Adjustment(allowed, 0 * ids, ones, none), Adjustment(None, ids, ones, 100 * ones)):
        segment = sequence.prepare(tree)._replace(rule=lambda rule=rule: rule, scoring=Scoring(2))
        (found,) = subject.model.choose([segment])
        sequence.abandon()
        assert found.tokens.tolist() == ids[:, 0].tolist()
        assert found.logprobs is not None
        np.testing.assert_allclose(found.logprobs.values, 0, atol=1e-5)
        assert found.logprobs.ids[:, 0].tolist() == ids[:, 0].tolist()
        assert found.logprobs.likeliest.shape == (len(tree), 2)
        if subject.backend.drafts:
            segment = sequence.prepare(tree)._replace(rule=lambda rule=rule: rule)
            (ranked,) = subject.model.rank([segment], 2)
            sequence.abandon()
            assert ranked.ids[:, 0].tolist() == ids[:, 0].tolist()
    np.testing.assert_array_equal(subject.answers(sequence, tree), before)


def test_log_probabilities_are_those_of_the_logits_and_change_no_choice(subject: Subject) -> None:
    """Of chosen tokens, and of given ones."""
    needs(subject.model.masks and subject.backend.drafts)
    (tree, _, _), sequence = subject.trees, subject.after(PREFIX, 0, SamplingParams())
    answers = subject.answers(sequence, tree)
    chosen, scores = answers[:, 0].astype(np.int32), answers[:, 1:]
    given = np.arange(30, 30 + len(tree), dtype=np.int32)
    for of, tokens in ((None, chosen), (given, given)):
        segment = sequence.prepare(tree)._replace(scoring=Scoring(3, of))
        (found,) = subject.model.choose([segment])
        sequence.abandon()
        assert found.tokens.tolist() == chosen.tolist()
        assert found.logprobs is not None
        expected = np.take_along_axis(scores, tokens[:, None], axis=1)[:, 0]
        np.testing.assert_allclose(found.logprobs.values, expected, atol=1e-4)
        best = -np.sort(-scores, axis=1)[:, :3]
        np.testing.assert_allclose(found.logprobs.likeliest, best, atol=1e-4)
        by_id = np.take_along_axis(scores, found.logprobs.ids, axis=1)
        np.testing.assert_allclose(by_id, best, atol=1e-4)
