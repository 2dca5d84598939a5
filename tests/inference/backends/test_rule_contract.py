"""The contract of a Model that takes rules, and reports log-probabilities."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inference.backends import Scoring
from inference.backends.sequence import ModelSequence
from inference.engine.sessions.local_session import LocalSession
from inference.sampling import SamplingParams
from inference.token_rule import Adjustment
from tests.support.backends import Subject, eager_model, needs
from tests.support.models import adjustment, tiny_decoder
from tests.support.neuron_artifacts import VOCABULARY, engine_of
from tests.support.pairs import alone, growing, nudged, speculated

PREFIX = list(range(20, 30))
SAMPLINGS = [
    SamplingParams(),
    SamplingParams(0.7, seed=11),
    SamplingParams(1.0, seed=2**62 + 5),
    SamplingParams(1.0, top_p=0.9, seed=13).on_the_wire(),
    SamplingParams(0.7, top_k=20, min_p=0.125, seed=14).on_the_wire(),
]
CLOSE = nudged(tiny_decoder(vocabulary=VOCABULARY))
"""A draft that often agrees with the checkpoint, and not always."""


def name(params: SamplingParams) -> str:
    return f"T{params.temperature}-p{params.top_p:.1f}-k{params.top_k}"


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
    for rule in (
        lambda: Adjustment(allowed, 0 * ids, ones, none),
        lambda: Adjustment(None, ids, ones, 100 * ones),
    ):
        segment = sequence.prepare(tree)._replace(rule=rule, scoring=Scoring(2))
        (found,) = subject.model.choose([segment])
        sequence.abandon()
        assert found.tokens.tolist() == ids[:, 0].tolist()
        assert found.logprobs is not None
        np.testing.assert_allclose(found.logprobs.values, 0, atol=1e-5)
        assert found.logprobs.ids[:, 0].tolist() == ids[:, 0].tolist()
        assert found.logprobs.likeliest.shape == (len(tree), 2)
        if subject.backend.drafts:
            segment = sequence.prepare(tree)._replace(rule=rule)
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


@pytest.mark.parametrize("params", SAMPLINGS, ids=name)
def test_a_nodes_rule_and_log_probabilities_are_those_of_the_eager_model(
    subject: Subject, params: SamplingParams
) -> None:
    """Beside a row that has neither, where there is one. Log-probabilities are those of the chosen
    tokens, or of tokens that are asked for.
    """
    needs(subject.model.masks and subject.decoder is not None)
    assert subject.decoder is not None
    rng, (tree, _, _) = np.random.default_rng(4), subject.trees
    rule, asked = adjustment(VOCABULARY, rng, len(tree), 12), np.arange(len(tree), dtype=np.int32)
    for of in (None, asked):
        found = []
        for model in (subject.model, eager_model(subject.decoder)):
            rows = [ModelSequence(model, row, params) for row in range(min(2, model.rows))]
            for row in rows:
                row.extend(PREFIX)
            ruled, *plain = [row.prepare(tree) for row in rows]
            ruled = ruled._replace(rule=lambda: rule, scoring=Scoring(5, of))
            found.append(model.choose([*plain, ruled]))
        (*_, ours), (*_, theirs) = found
        assert [one.tokens.tolist() for one in found[0]] == [
            one.tokens.tolist() for one in found[1]
        ]
        assert ours.logprobs is not None
        assert theirs.logprobs is not None
        for one, other in zip(ours.logprobs, theirs.logprobs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


PENALTIES = SamplingParams(
    repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.3, min_p=0.02,
    logit_bias=((7, 1.5), (11, -100.0)), logprobs=2,
)  # fmt: skip


@pytest.mark.parametrize("params", SAMPLINGS[:3], ids=name)
def test_a_text_with_penalties_and_biases_is_its_own_whatever_is_proposed(
    subject: Subject, params: SamplingParams
) -> None:
    needs(subject.model.masks and subject.backend.trees and subject.decoder is not None)
    assert subject.decoder is not None
    own = replace(PENALTIES, temperature=params.temperature, seed=params.seed).on_the_wire()
    prompt, eager = PREFIX * 2, engine_of(eager_model(subject.decoder))
    expected = alone(LocalSession(eager), prompt, own, 24)
    assert alone(LocalSession(engine_of(subject.model)), prompt, own, 24) == expected
    session = LocalSession(engine_of(subject.model))
    assert speculated(session, growing(CLOSE), prompt, own, 24) == expected
