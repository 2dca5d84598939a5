"""Random calls for comparing two models: trees of any shape after a scattered context, with
different sampling parameters in each row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inference.backends import Scoring, Segment
from inference.files.artifact import Bucket
from inference.sampling import MAX_LOGPROBS, SamplingParams
from inference.token_rule import Adjustment
from inference.tree.token_tree import IntArray, TokenTree

SAMPLINGS = (
    SamplingParams(1.0, seed=7),
    SamplingParams(),
    SamplingParams(0.7, top_k=20, seed=2**40 + 1),
    SamplingParams(1.0, top_p=0.9, seed=3),
    SamplingParams(1.0, min_p=0.1, seed=4),
)


def random_segments(
    bucket: Bucket,
    vocabulary: int,
    cache_rows: int,
    length: int,
    seed: int,
    samplings: Sequence[SamplingParams] = SAMPLINGS,
) -> list[Segment]:
    """Return a random call that fills the bucket's graph: trees, or chunks of prompts.

    length: exclusive maximum of the positions
    samplings: used by the rows in turn; the rows of a greedy graph are greedy
    """
    rng = np.random.default_rng(seed)
    segments = []
    for index, row in enumerate(rng.permutation(cache_rows)[: bucket.rows].tolist()):
        base = int(rng.integers(0, max(1, length - bucket.nodes)))
        params = samplings[(index + seed) % len(samplings)] if bucket.sampled else SamplingParams()
        parents = _random_parents(bucket, rng)
        segment = _segment(rng, bucket, row, parents, base, vocabulary, length, params)
        segments.append(_ruled(segment, bucket, vocabulary, rng) if bucket.masked else segment)
    return segments


def beside(segments: Sequence[Segment], neighbours: Sequence[Segment]) -> list[Segment]:
    """Return a call's neighbours in its rows, but with the call's own root and context in row 0."""
    moved = [new._replace(row=old.row) for old, new in zip(segments, neighbours, strict=True)]
    first, second = segments[0], moved[0]
    slots = np.where(second.slots == first.slots[0], second.slots[0], second.slots)
    moved[0] = second._replace(
        tokens=np.append(first.tokens[:1], second.tokens[1:]),
        slots=np.append(first.slots[:1], slots[1:]),
        positions=second.positions - second.positions[0] + first.positions[0],
        context=first.context,
        params=first.params,
        scoring=first.scoring,
    )
    if first.rule is not None and second.rule is not None:
        mine, theirs = first.rule(), second.rule()
        assert mine.allowed is not None, "_ruled allows some ids"
        assert theirs.allowed is not None, "_ruled allows some ids"
        biases = mine.biases.copy()
        biases[1:, 0] += 1
        allowed = np.append(mine.allowed[:1], theirs.allowed[1:], axis=0)
        rule = mine._replace(allowed=allowed, biases=biases)
        moved[0] = moved[0]._replace(rule=lambda: rule)
    return moved


def _segment(
    rng: np.random.Generator,
    bucket: Bucket,
    row: int,
    parents: IntArray,
    base: int,
    vocabulary: int,
    length: int,
    params: SamplingParams,
) -> Segment:
    """Return a row's nodes at random slots, which see a random part of the context except these
    slots.

    base: position of the root
    """
    tree = TokenTree(np.resize(rng.permutation(vocabulary), len(parents)), parents)
    slots = rng.permutation(bucket.junk)[: len(parents)].astype(np.int32)
    context = rng.random((1, bucket.slots)) < rng.random()
    context[0, slots[slots < bucket.slots]] = False
    positions = np.minimum(base + tree.depths, length - 1).astype(np.int32)
    pick = np.arange(len(parents), dtype=np.int32)[-bucket.picks :]
    return Segment(row, tree.tokens, slots, positions, context, tree.mask, pick, params)


def _random_parents(bucket: Bucket, rng: np.random.Generator) -> IntArray:
    """Return a random tree within the graph's depths of noise; for prompts, a chain."""
    if not bucket.everywhere:
        return np.arange(-1, bucket.nodes - 1, dtype=np.int32)
    parents, depths = [-1], [0]
    levels = bucket.levels if bucket.sampled else bucket.nodes
    for node in range(1, bucket.nodes):
        able = [above for above in range(node) if depths[above] + 1 < levels]
        parents.append(int(rng.choice(able)))
        depths.append(depths[parents[-1]] + 1)
    return np.array(parents, dtype=np.int32)


def _ruled(segment: Segment, bucket: Bucket, vocabulary: int, rng: np.random.Generator) -> Segment:
    """Return the segment with log-probabilities requested, and with random allowed ids and changes
    of logits: as many as the graph supports, one of them different at each node.
    """
    nodes, count = len(segment.pick), min(bucket.changes, vocabulary // 2)
    bits = rng.random((nodes, 32 * bucket.words)) < rng.random((nodes, 1))
    bits[:, 0], bits[:, vocabulary:] = True, False
    allowed = np.packbits(bits, -1, "little").view(np.int32)
    ids = np.tile(rng.permutation(vocabulary)[:count].astype(np.int32), (nodes, 1))
    factors, biases = np.repeat(rng.uniform(0.5, 2.0, (2, 1, count)), nodes, 1).astype(np.float32)
    biases[np.arange(nodes), rng.integers(0, count, nodes)] += 1
    rule = Adjustment(allowed, ids, factors, biases)
    scored = rng.integers(0, vocabulary, nodes, dtype=np.int32)
    return segment._replace(rule=lambda: rule, scoring=Scoring(MAX_LOGPROBS, scored))
