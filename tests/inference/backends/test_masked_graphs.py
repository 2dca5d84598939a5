"""Masked graphs: what a rule says at each node reaches its logits, and log-probabilities come
back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compile.spec import mask_words, prefill_bucket, verify_bucket
from inference.artifact import Bucket
from inference.backends import Chosen, Scoring, Segment
from inference.backends.compiled import CompiledModel
from inference.backends.graph_calls import inputs_of
from inference.model.arithmetic import ENGINES, HOST
from inference.model.cache import empty_cache
from inference.model.mask_inputs import MaskInputs
from inference.model.sampler import OUT_OF_REACH
from inference.model.verify_graph import VerifyGraph
from inference.model.vocabulary import WHOLE_VOCABULARY
from inference.sampling import SamplingParams
from inference.token_rule import Adjustment
from inference.tree import IntArray
from tests.support.models import tiny_decoder

VOCABULARY, NODES, JUNK = 61, 8, 40
WORDS = mask_words(VOCABULARY, 1)
EVERY = np.arange(NODES, dtype=np.int32)
MASKED = verify_bucket(2, NODES, JUNK, JUNK, sampled=True, words=WORDS)


def adjustment(rng: np.random.Generator, nodes: int, named: int) -> Adjustment:
    """What a rule may say at the nodes of a tree: the first node's changes are those of a text. Other
    paths lack some of them, change some and add some. They are in any order, and padded.
    """
    text = rng.permutation(VOCABULARY)[:named]
    told = dict(zip(text.tolist(), rng.uniform(0.5, 2, (named, 2)).tolist(), strict=True))
    rows = [told]
    for _ in range(nodes - 1):
        own, some = dict(list(told.items())[rng.integers(4) :]), rng.permutation(VOCABULARY)[:3]
        rows.append(
            own | dict(zip(some.tolist(), rng.uniform(0.5, 2, (3, 2)).tolist(), strict=True))
        )
    ids = np.zeros((nodes, named + 4), dtype=np.int32)
    changes = np.tile(np.array([1, 0], dtype=np.float32), (nodes, named + 4, 1))
    for row, pairs in enumerate(rows):
        order = rng.permutation(named + 4)[: len(pairs)]
        ids[row, order] = list(pairs)
        changes[row, order] = np.reshape(list(pairs.values()), (-1, 2))
    bits = rng.random((nodes, 32 * WORDS)) < 0.5
    bits[:, VOCABULARY:] = False
    allowed = np.packbits(bits, -1, "little").view(np.int32) if rng.random() < 0.8 else None
    return Adjustment(allowed, ids, changes[..., 0].copy(), changes[..., 1].copy())


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


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, NODES), st.integers(0, 40))
def test_what_a_rule_says_at_each_node_is_done_to_its_logits(
    seed: int, picked: int, named: int
) -> None:
    """By scatters and by products of matrices; rows without a rule stay as they are. Nodes that are
    not picked choose nothing that is asked for.
    """
    rng = np.random.default_rng(seed)
    pick = np.sort(rng.permutation(NODES)[:picked]).astype(np.int32)
    rule = adjustment(rng, picked, named)
    plain = chain(0, NODES, SamplingParams(), pick)
    ruled = chain(1, NODES, SamplingParams(), pick)._replace(rule=lambda: rule)
    inputs = inputs_of(replace(MASKED, rows=3), [plain, ruled])
    logits = torch.from_numpy(rng.normal(0, 3, (3, NODES, VOCABULARY)).astype(np.float32))
    ids = torch.arange(VOCABULARY, dtype=torch.int32)
    expected = logits.clone()
    expected[1, pick] = torch.from_numpy(adjusted(logits[1, pick].numpy(), rule))
    masks = MaskInputs(*(inputs[name] for name in MaskInputs._fields))
    for way in (HOST, ENGINES):
        made = masks.adjusted(logits, ids, WHOLE_VOCABULARY, way)
        for row, nodes in ((0, EVERY), (1, pick), (2, EVERY)):
            ours, theirs = made[row, nodes], expected[row, nodes]
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


class Watched(CompiledModel):
    """Graphs of a tiny model, run eagerly. called: names of the graphs that were called"""

    def __init__(self, *buckets: Bucket) -> None:
        decoder, self.called = tiny_decoder(num_hidden_layers=1), list[str]()
        cache = empty_cache(decoder.config, 2, JUNK, torch.float32)
        graphs = {bucket: VerifyGraph(decoder, cache, bucket.levels) for bucket in buckets}
        super().__init__(graphs, cache)

    def _call(self, bucket: Bucket, segments: Sequence[Segment]) -> list[Chosen]:
        self.called.append(bucket.name)
        return super()._call(bucket, segments)


PLAIN = replace(MASKED, words=0)
HOT = SamplingParams(1.0, seed=3)


def test_a_call_with_a_rule_or_a_scoring_goes_to_a_masked_graph_and_no_other_does() -> None:
    model = Watched(PLAIN, MASKED, prefill_bucket(1, 16, JUNK, JUNK))
    tree = chain(0, NODES, HOT, EVERY)
    rule = adjustment(np.random.default_rng(0), NODES, 5)
    model.choose([tree])
    model.choose([tree, tree._replace(row=1, rule=lambda: rule)])
    model.choose([tree._replace(scoring=Scoring(2))])
    assert model.called == [PLAIN.name, MASKED.name, MASKED.name]
    assert model.masks
    assert not Watched(PLAIN).masks


def test_a_row_without_a_rule_chooses_beside_one_with_a_rule_what_it_chooses_alone() -> None:
    model, tree = Watched(PLAIN, MASKED), chain(0, NODES, HOT, EVERY)
    (alone,) = model.choose([tree])
    rule = adjustment(np.random.default_rng(1), NODES, 9)
    beside, ruled = model.choose([tree, tree._replace(row=1, rule=lambda: rule)])
    assert beside.tokens.tolist() == alone.tokens.tolist()
    assert beside.logprobs is None
    assert rule.allowed is not None
    bits = np.unpackbits(rule.allowed.view(np.uint8), axis=-1, bitorder="little")
    assert bits[EVERY, ruled.tokens].all()


def test_a_tree_deeper_than_a_graphs_noise_has_each_nodesown_rule_and_log_probabilities() -> None:
    rule = adjustment(np.random.default_rng(2), NODES, 9)
    tree = chain(0, NODES, HOT, EVERY)._replace(rule=lambda: rule, scoring=Scoring(3))
    (whole,), (parted,) = (
        Watched(replace(MASKED, levels=levels)).choose([tree]) for levels in (NODES, 3)
    )
    assert parted.tokens.tolist() == whole.tokens.tolist()
    assert whole.logprobs is not None
    assert parted.logprobs is not None
    assert whole.logprobs.ids.shape == (NODES, 3)
    for ours, theirs in zip(parted.logprobs, whole.logprobs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
