"""Masked graphs: what a rule says at each node reaches its logits, and log-probabilities come
back.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from compile.spec import mask_words, prefill_bucket, verify_bucket
from inference.backends import Scoring, Segment
from inference.backends.graphs.compiled import CompiledModel, Graph
from inference.backends.graphs.graph_calls import inputs_of
from inference.files.artifact import Bucket
from inference.model.cache import empty_cache
from inference.model.choice.arithmetic import ENGINES, HOST
from inference.model.choice.graph_choice import MaskInputs
from inference.model.choice.sampler import OUT_OF_REACH
from inference.model.choice.vocabulary import WHOLE_VOCABULARY
from inference.model.graphs.verify_graph import VerifyGraph
from inference.sampling import SamplingParams
from inference.token_rule import Adjustment
from inference.tree.token_tree import IntArray
from tests.support.models import adjustment, tiny_decoder
from tests.support.tiers import examples

VOCABULARY, NODES, JUNK = 61, 8, 40
WORDS = mask_words(VOCABULARY, 1)
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
        made[bits[:, :VOCABULARY] == 0] -= OUT_OF_REACH
    return made


def chain(row: int, nodes: int, params: SamplingParams, pick: IntArray) -> Segment:
    order, mask = np.arange(nodes, dtype=np.int32), np.tri(nodes, dtype=np.bool_)
    unseen = np.zeros((1, 0), dtype=np.bool_)
    return Segment(row, order + 1, order, order, unseen, mask, pick, params)


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
    rule = adjustment(VOCABULARY, rng, picked, named)
    plain = chain(0, NODES, SamplingParams(), pick)
    ruled = chain(1, NODES, SamplingParams(), pick)._replace(rule=lambda: rule)
    inputs = inputs_of(replace(MASKED, rows=3), [plain, ruled])
    logits = torch.from_numpy(rng.normal(0, 3, (3, NODES, VOCABULARY)).astype(np.float32))
    ids = torch.arange(VOCABULARY, dtype=torch.int32)
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
    tree = chain(0, NODES, HOT, EVERY)
    rule = adjustment(VOCABULARY, np.random.default_rng(0), NODES, 5)
    model.choose([tree])
    beside, _ = model.choose([tree, tree._replace(row=1, rule=lambda: rule)])
    assert beside.logprobs is None
    model.choose([tree._replace(scoring=Scoring(2))])
    assert called == [PLAIN.name, MASKED.name, MASKED.name]
    assert model.masks
    assert not watched(PLAIN)[0].masks


def test_a_tree_deeper_than_a_graphs_noise_has_each_nodesown_rule_and_log_probabilities() -> None:
    rule = adjustment(VOCABULARY, np.random.default_rng(2), NODES, 9)
    tree = chain(0, NODES, HOT, EVERY)._replace(rule=lambda: rule, scoring=Scoring(3))
    (whole,), (parted,) = (
        watched(replace(MASKED, levels=levels))[0].choose([tree]) for levels in (NODES, 3)
    )
    assert parted.tokens.tolist() == whole.tokens.tolist()
    assert whole.logprobs is not None
    assert parted.logprobs is not None
    assert whole.logprobs.ids.shape == (NODES, 3)
    for ours, theirs in zip(parted.logprobs, whole.logprobs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
