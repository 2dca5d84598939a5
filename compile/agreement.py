"""Checks that two models agree: a compiled graph with its eager model, or a device with the host.

Both models compute the same calls: random trees after a random context, with different sampling
parameters in each row. Their choices may differ in the few near-ties that rounding decides. A
graph's keys, values, features and log-probabilities are compared, too. A root's results must not
depend on other nodes and rows in any bit, otherwise candidates would change the output.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from compile.spec import verify_bucket
from inference.backends import Chosen, Model, Scoring, Segment
from inference.backends.eager import EagerModel
from inference.backends.graphs.compiled import CompiledModel
from inference.backends.sequence import ModelSequence
from inference.errors import BadArtifact
from inference.files.artifact import Bucket, Manifest
from inference.sampling import MAX_LOGPROBS, SamplingParams
from inference.token_rule import Adjustment
from inference.tree.token_tree import IntArray, TokenTree

CALLS = 3
"""Number of calls that are compared for each entry of WAYS."""
WAYS = {"greedy": SamplingParams(), "temperature 1": SamplingParams(1.0, seed=7)}
"""Sampling parameters that are compared, by name."""
_MIN_LOGPROB = -100.0  # smaller log-probabilities are clamped
SAMPLINGS = (
    SamplingParams(1.0, seed=7),
    SamplingParams(),
    SamplingParams(0.7, top_k=20, seed=2**40 + 1),
    SamplingParams(1.0, top_p=0.9, seed=3),
    SamplingParams(1.0, min_p=0.1, seed=4),
)
"""Sampling parameters of random calls, used by their rows in turn."""


class Tolerance(NamedTuple):
    """The maximum differences of a graph by rounding, with random numbers as context.

    The median node's states are compared, because a few of the random inputs amplify any rounding.
    """

    states: float  # distance of a node's keys, values or features, relative to their norm
    choices: float  # share of the choices that may differ, for each sampling


ROUNDING = {
    torch.float32: Tolerance(1e-4, 0.02),
    torch.float16: Tolerance(3e-2, 0.1),
    torch.bfloat16: Tolerance(1e-1, 0.25),
}


@dataclass(frozen=True)
class Agreement:
    """Number of equal choices of two models after the same tokens."""

    how: str  # description of the comparison
    equal: int
    total: int
    first: str = ""  # the first difference; empty if there is none

    def is_enough(self, share: float = 0.03) -> bool:
        """Return whether at most this share differs, or one choice. In bfloat16, about 1 in 100
        choices is a near-tie.
        """
        return self.total - self.equal <= max(1, share * self.total)

    def __str__(self) -> str:
        first = f", first difference: {self.first}" if self.first else ""
        return f"{self.how}: {self.equal} of {self.total} choices equal{first}"


def check_graph(
    model: CompiledModel,
    reference: EagerModel,
    bucket: Bucket,
    length: int,
    features: Sequence[int] = (),
) -> None:
    """Raise BadArtifact unless a graph computes the same as the eager model, and each root
    regardless of the other nodes. Overwrites both models' caches.

    model: with the bucket's graph only, and caches of the same shape as the reference's
    length: maximum positions of both models
    features: layers whose inputs the graph returns
    """
    for decoder in (model, reference) if features else ():
        decoder.keep_features(features)
    vocabulary, rows = reference.decoder.vocabulary, reference.rows
    choices = defaultdict[SamplingParams, list[tuple[Sequence[Chosen], ...]]](list)
    errors = defaultdict[str, list[Tensor]](list)
    for seed in range(CALLS):
        generator = torch.Generator().manual_seed(seed)
        for ours, theirs in zip(model.by_slot, reference.by_slot, strict=True):
            ours.copy_(theirs.normal_(generator=generator))
        call = random_segments(bucket, vocabulary, rows, length, seed)
        choices_here, expected = model.choose(call), reference.choose(call)
        for segment, *pair in zip(call, choices_here, expected, strict=True):
            choices[segment.params].append(tuple([answer] for answer in pair))
        states = written_states(reference, call, expected, bool(features))
        for name, ours in written_states(model, call, choices_here, bool(features)).items():
            errors[name].append(_distances(ours, states[name]))
    allowed, wrong = ROUNDING[reference.dtype], list[str]()
    for params, pairs in choices.items():
        agreement = compare(_name(params), pairs)
        if not agreement.is_enough(allowed.choices):
            wrong.append(f"its choices differ: {agreement}")
    for name, distances in errors.items():
        error = float(torch.cat(distances).median())
        if not error <= allowed.states:
            wrong.append(f"its {name} differ by {error:.1e} of their length, not {allowed.states}")
    if wrong:
        raise BadArtifact(f"graph {bucket.name} is not the eager model's: {'; '.join(wrong)}")
    first, second = (random_segments(bucket, vocabulary, rows, length, seed) for seed in (0, 1))
    if not bucket.everywhere:  # a prompt graph chooses at a single node
        root = np.zeros(1, dtype=np.int32)
        first, second = ([row._replace(pick=root) for row in call] for call in (first, second))
    roots = []
    for call in (first, beside(first, second)):
        choices_here = model.choose(call)[:1]
        roots.append({"choices": torch.from_numpy(choices_here[0].tokens)[None]})
        roots[-1] |= written_states(model, call[:1], choices_here, bool(features))
    for name, ours in roots[0].items():
        if not torch.equal(ours[:, 0], roots[1][name][:, 0]):
            raise BadArtifact(
                f"graph {bucket.name}: the root's {name} change with the tokens beside it, which "
                "would not be lossless"
            )


def agreements(model: Model, reference: Model, manifest: Manifest) -> Iterator[Agreement]:
    """Compare two models' choices in row 0 after a random prompt. Sizes are the limits in the
    manifest.
    """
    vocabulary, length = manifest.vocabulary, manifest.sequence_length
    prompt = np.random.default_rng(5).integers(0, vocabulary, length // 2).tolist()
    for compared in (model, reference):
        ModelSequence(compared, 0, SamplingParams()).extend(prompt)
    nodes, junk = manifest.max_tree_nodes, manifest.capacity
    bucket = verify_bucket(1, nodes, len(prompt), junk, sampled=True)
    for how, params in WAYS.items():
        calls = [
            random_segments(bucket, vocabulary, 1, length, seed, [params]) for seed in range(CALLS)
        ]
        yield compare(how, [(model.choose(call), reference.choose(call)) for call in calls])


def _name(params: SamplingParams) -> str:
    if params.greedy:
        return "greedy"
    limits = f"top_k {params.top_k}, top_p {params.top_p:g}, min_p {params.min_p:g}"
    return f"temperature {params.temperature:g}, {limits}"


def compare(how: str, calls: Sequence[tuple[Sequence[Chosen], ...]]) -> Agreement:
    """Count the equal choices of two models over several calls."""
    equal, total, first = 0, 0, ""
    for number, answers in enumerate(calls):
        ours, theirs = (np.concatenate([answer.tokens for answer in chosen]) for chosen in answers)
        differing = np.flatnonzero(ours != theirs)
        equal, total = equal + len(ours) - len(differing), total + len(ours)
        if differing.size and not first:
            node = int(differing[0])
            first = f"call {number}, node {node}: token {ours[node]} for {theirs[node]}"
    return Agreement(how, equal, total, first)


def written_states(
    model: CompiledModel | EagerModel,
    call: Sequence[Segment],
    answers: Sequence[Chosen] = (),
    features: bool = False,
) -> dict[str, Tensor]:
    """Return the keys and values that a call wrote, and its features and log-probabilities if
    requested, by name: [layers, nodes, width].
    """
    at = [(segment.row, torch.from_numpy(segment.slots).long()) for segment in call]
    states = {
        name: torch.stack([torch.cat([layer[row, slots] for row, slots in at]) for layer in layers])
        for name, layers in (("keys", model.cache.keys), ("values", model.cache.values))
    }
    if features:
        features_of_rows = [model.features(segment.row, segment.slots) for segment in call]
        states["features"] = torch.cat(features_of_rows)[None]
    scored = [answer.logprobs for answer in answers if answer.logprobs is not None]
    if scored:
        numbers = np.concatenate(
            [np.column_stack((scores.values, scores.likeliest)) for scores in scored]
        )
        states["log-probabilities"] = torch.from_numpy(numbers)[None].clamp(min=_MIN_LOGPROB)
    return states


def _distances(ours: Tensor, theirs: Tensor) -> Tensor:  # [layers, nodes, width] twice -> [nodes]
    differences = (ours.float() - theirs.float()).square().sum((0, 2)).sqrt()
    return differences / theirs.float().square().sum((0, 2)).sqrt()


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
