"""The contract of a Model that takes rules and reports log-probabilities, and masked graphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from compile.spec import mask_words, prefill_bucket, verify_bucket
from inference.backends import Scoring
from inference.backends.graphs.compiled import CompiledModel, Graph
from inference.backends.graphs.graph_calls import inputs_of
from inference.backends.sequence import ModelSequence
from inference.engine.sessions.local_session import LocalSession
from inference.files.artifact import Bucket
from inference.model.cache import empty_cache
from inference.model.choice.arithmetic import ENGINES, HOST
from inference.model.choice.graph_choice import MaskInputs
from inference.model.choice.sampler import OUT_OF_REACH
from inference.model.choice.vocabulary import WHOLE_VOCABULARY
from inference.model.graphs.verify_graph import VerifyGraph
from inference.sampling import SamplingParams
from inference.token_rule import Adjustment
from tests.support.backends import (
    Subject,
    eager_model,
    is_of_a_checkpoint,
    ranks_trees,
    takes_trees,
)
from tests.support.models import SAMPLINGS, adjustment, segment, tiny_decoder
from tests.support.neuron_artifacts import VOCABULARY, engine_of
from tests.support.pairs import alone, growing, nudged, speculated
from tests.support.tiers import examples

PREFIX = list(range(20, 30))
CLOSE = nudged(tiny_decoder(vocabulary=VOCABULARY))
"""A draft that often agrees with the checkpoint, and not always."""


@pytest.mark.possible(takes_trees, "subject")
@pytest.mark.covering(1)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_rule_decides_at_each_node_and_is_seen_in_log_probabilities(
    subject: Subject, temperature: float
) -> None:
    """A mask of one token, then a bias beyond all others; the calls after it are as before."""
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
        call = sequence.prepare(tree)._replace(rule=rule, scoring=Scoring(2))
        (found,) = subject.model.choose([call])
        sequence.abandon()
        assert found.tokens.tolist() == ids[:, 0].tolist()
        assert found.logprobs is not None
        np.testing.assert_allclose(found.logprobs.values, 0, atol=1e-5)
        assert found.logprobs.ids[:, 0].tolist() == ids[:, 0].tolist()
        assert found.logprobs.likeliest.shape == (len(tree), 2)
        if subject.backend.drafts:
            call = sequence.prepare(tree)._replace(rule=rule)
            (ranked,) = subject.model.rank([call], 2)
            sequence.abandon()
            assert ranked.ids[:, 0].tolist() == ids[:, 0].tolist()
    np.testing.assert_array_equal(subject.answers(sequence, tree), before)


@pytest.mark.possible(ranks_trees, "subject")
def test_log_probabilities_are_those_of_the_logits_and_change_no_choice(subject: Subject) -> None:
    """Of chosen tokens, and of given ones."""
    (tree, _, _), sequence = subject.trees, subject.after(PREFIX, 0, SamplingParams())
    answers = subject.answers(sequence, tree)
    chosen, scores = answers[:, 0].astype(np.int32), answers[:, 1:]
    given = np.arange(30, 30 + len(tree), dtype=np.int32)
    for of, tokens in ((None, chosen), (given, given)):
        call = sequence.prepare(tree)._replace(scoring=Scoring(3, of))
        (found,) = subject.model.choose([call])
        sequence.abandon()
        assert found.tokens.tolist() == chosen.tolist()
        assert found.logprobs is not None
        expected = np.take_along_axis(scores, tokens[:, None], axis=1)[:, 0]
        np.testing.assert_allclose(found.logprobs.values, expected, atol=1e-4)
        best = -np.sort(-scores, axis=1)[:, :3]
        np.testing.assert_allclose(found.logprobs.likeliest, best, atol=1e-4)
        by_id = np.take_along_axis(scores, found.logprobs.ids, axis=1)
        np.testing.assert_allclose(by_id, best, atol=1e-4)


@pytest.mark.possible(is_of_a_checkpoint, "subject")
@pytest.mark.covering(1)
@pytest.mark.parametrize("params", SAMPLINGS, ids=str)
def test_a_nodes_rule_and_log_probabilities_are_those_of_the_eager_model(
    subject: Subject, params: SamplingParams
) -> None:
    """Beside a row that has neither, where there is one. Log-probabilities are those of the chosen
    tokens, or of tokens that are asked for.
    """
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


@pytest.mark.possible(is_of_a_checkpoint, "subject")
@pytest.mark.covering(1)
@pytest.mark.parametrize("params", SAMPLINGS[:3], ids=str)
def test_a_text_with_penalties_and_biases_is_its_own_whatever_is_proposed(
    subject: Subject, params: SamplingParams
) -> None:
    assert subject.decoder is not None
    own = replace(PENALTIES, temperature=params.temperature, seed=params.seed).on_the_wire()
    prompt, eager = PREFIX * 2, engine_of(eager_model(subject.decoder))
    expected = alone(LocalSession(eager), prompt, own, 24)
    assert alone(LocalSession(engine_of(subject.model)), prompt, own, 24) == expected
    session = LocalSession(engine_of(subject.model))
    assert speculated(session, growing(CLOSE), prompt, own, 24) == expected


IDS, NODES, JUNK = 61, 8, 40
WORDS = mask_words(IDS, 1)
EVERY = np.arange(NODES, dtype=np.int32)
MASKED = verify_bucket(2, NODES, JUNK, JUNK, sampled=True, words=WORDS)


def adjusted(logits: np.ndarray, rule: Adjustment) -> np.ndarray:  # [p, V]
    """The logits at the picked nodes, token by token."""
    made = logits.astype(np.float32).copy()
    for node, ids in enumerate(rule.ids):
        for at, token in enumerate(ids):
            factor, bias = rule.factors[node, at], rule.biases[node, at]
            if (factor, bias) != (1, 0):
                old = logits[node, token]
                made[node, token] = (old / factor if old > 0 else old * factor) + bias
    if rule.allowed is not None:
        bits = np.unpackbits(rule.allowed.view(np.uint8), axis=-1, bitorder="little")
        made[bits[:, :IDS] == 0] -= OUT_OF_REACH
    return made


@settings(max_examples=examples(40))
@given(st.integers(0, 2**32), st.integers(1, NODES), st.integers(0, 40))
def test_what_a_rule_says_at_each_node_is_done_to_its_logits(
    seed: int, picked: int, named: int
) -> None:
    """By scatters and by products of matrices; rows without a rule stay as they are. Nodes that are
    not picked choose nothing that is asked for.

    A changed logit is a product and a sum, each of which rounds by 2**-24 of what it makes: at most
    twice the largest logit and two more, since factors and biases are at most 2. Two ways together
    round four times.
    """
    rng = np.random.default_rng(seed)
    pick = np.sort(rng.permutation(NODES)[:picked]).astype(np.int32)
    rule = adjustment(IDS, rng, picked, named)
    plain = segment(0, NODES)._replace(pick=pick)
    ruled = segment(1, NODES)._replace(pick=pick, rule=lambda: rule)
    inputs = inputs_of(replace(MASKED, rows=3), [plain, ruled])
    logits = torch.from_numpy(rng.normal(0, 3, (3, NODES, IDS)).astype(np.float32))
    ids = torch.arange(IDS, dtype=torch.int32)
    expected = logits.clone()
    expected[1, pick] = torch.from_numpy(adjusted(logits[1, pick].numpy(), rule))
    largest = 2 * float(logits.abs().max()) + 2
    masks = MaskInputs(*(inputs[name] for name in MaskInputs._fields))
    for way in (HOST, ENGINES):
        made = masks.adjusted(logits, ids, WHOLE_VOCABULARY, way)
        for row, nodes in ((0, EVERY), (1, pick), (2, EVERY)):
            ours, theirs = made[row, nodes], expected[row, nodes]
            torch.testing.assert_close(ours, theirs, rtol=0, atol=2.0**-22 * largest)


def watched(*buckets: Bucket) -> tuple[CompiledModel, list[str]]:
    """Graphs of a tiny model, run eagerly, and the names of those that are called."""
    decoder, called = tiny_decoder(num_hidden_layers=1), list[str]()
    cache = empty_cache(decoder.config, 2, JUNK, torch.float32)

    def noted(bucket: Bucket) -> Graph:
        graph = VerifyGraph(decoder, cache, bucket.levels)

        def run(**inputs: Tensor) -> tuple[Tensor, ...]:
            called.append(bucket.name)
            made: tuple[Tensor, ...] = graph(**inputs)
            return made

        return run

    return CompiledModel({bucket: noted(bucket) for bucket in buckets}, cache), called


PLAIN = replace(MASKED, words=0)
HOT = SamplingParams(1.0, seed=3)


def test_a_call_with_a_rule_or_a_scoring_goes_to_a_masked_graph_and_no_other_does() -> None:
    model, called = watched(PLAIN, MASKED, prefill_bucket(1, 16, JUNK, JUNK))
    tree = segment(0, NODES, HOT)
    rule = adjustment(IDS, np.random.default_rng(0), NODES, 5)
    model.choose([tree])
    beside, _ = model.choose([tree, tree._replace(row=1, rule=lambda: rule)])
    assert beside.logprobs is None
    model.choose([tree._replace(scoring=Scoring(2))])
    assert called == [PLAIN.name, MASKED.name, MASKED.name]
    assert model.masks
    assert not watched(PLAIN)[0].masks


def test_a_tree_deeper_than_a_graphs_noise_has_each_nodes_own_rule_and_log_probabilities() -> None:
    rule = adjustment(IDS, np.random.default_rng(2), NODES, 9)
    tree = segment(0, NODES, HOT)._replace(rule=lambda: rule, scoring=Scoring(3))
    (whole,), (parted,) = (
        watched(replace(MASKED, levels=levels))[0].choose([tree]) for levels in (NODES, 3)
    )
    assert parted.tokens.tolist() == whole.tokens.tolist()
    assert whole.logprobs is not None
    assert parted.logprobs is not None
    assert whole.logprobs.ids.shape == (NODES, 3)
    for ours, theirs in zip(parted.logprobs, whole.logprobs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
