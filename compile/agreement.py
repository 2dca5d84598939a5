"""The check that two models agree: a compiled graph with its eager model, and a device with the
host.

Both models get the same calls: random trees above a random context, each row with other sampling
parameters. Their choices may differ in the few near-ties that rounding decides. A graph's keys,
values, features and log-probabilities are compared, too, and no bit of a root's results may depend
on other nodes and rows: otherwise candidates would change the text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from compile.random_calls import beside, random_segments
from compile.spec import verify_bucket
from inference.backends import Chosen, Model, Segment
from inference.backends.eager import EagerModel
from inference.backends.graphs.compiled import CompiledModel
from inference.backends.sequence import ModelSequence
from inference.errors import BadArtifact
from inference.files.artifact import Bucket, Manifest
from inference.sampling import SamplingParams

CALLS = 3
"""Calls that are compared in each way."""
WAYS = {"greedy": SamplingParams(), "temperature 1": SamplingParams(1.0, seed=7)}
"""Sampling of texts and devices that are compared, in words."""
_MIN_LOGPROB = -100.0  # log-probability below which numbers are not compared


class Tolerance(NamedTuple):
    """The most by which rounding may move a graph's results above a context of noise.

    The median node's states count, because a few of the random inputs amplify any rounding.
    """

    states: float  # distance of a node's keys, values or features, as a part of their length
    choices: float  # share of the choices under one sampling that may differ


ROUNDING = {
    torch.float32: Tolerance(1e-4, 0.02),
    torch.float16: Tolerance(3e-2, 0.1),
    torch.bfloat16: Tolerance(1e-1, 0.25),
}


@dataclass(frozen=True)
class Agreement:
    """The count of a model's choices that equal another's after the same tokens."""

    how: str  # what was compared, in words
    equal: int
    total: int
    first: str = ""  # the first that differs; empty if none does

    def is_enough(self, share: float = 0.03) -> bool:
        """Whether at most this share differs, or one choice: in bfloat16 about 1 in 100 choices
        of a text is a near-tie.
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
    """Raise BadArtifact unless a graph computes what the eager model computes, and each root by
    itself. The calls overwrite both models' caches.

    model: over the bucket's graph alone, with caches of the reference's shape
    length: positions that both take
    features: layers whose inputs the graph returns
    """
    for each in (model, reference) if features else ():
        each.keep_features(features)
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
            choices[segment.params].append(tuple([each] for each in pair))
        states = written_states(reference, call, expected, bool(features))
        for name, ours in written_states(model, call, choices_here, bool(features)).items():
            errors[name].append(_distances(ours, states[name]))
    allowed, wrong = ROUNDING[reference.dtype], list[str]()
    for params, pairs in choices.items():
        compared = compare(_name(params), pairs)
        if not compared.is_enough(allowed.choices):
            wrong.append(f"its choices differ: {compared}")
    for name, distances in errors.items():
        error = float(torch.cat(distances).median())
        if not error <= allowed.states:
            wrong.append(f"its {name} differ by {error:.1e} of their length, not {allowed.states}")
    if wrong:
        raise BadArtifact(f"graph {bucket.name} is not the eager model's: {'; '.join(wrong)}")
    first, second = (random_segments(bucket, vocabulary, rows, length, seed) for seed in (0, 1))
    if not bucket.everywhere:  # a prompt's graph chooses at one node
        root = np.zeros(1, dtype=np.int32)
        first, second = ([each._replace(pick=root) for each in call] for call in (first, second))
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
    """Compare a model's choices with another's in row 0, behind a random prompt. The manifest says
    what the model takes.
    """
    vocabulary, length = manifest.vocabulary, manifest.sequence_length
    prompt = np.random.default_rng(5).integers(0, vocabulary, length // 2).tolist()
    for each in (model, reference):
        ModelSequence(each, 0, SamplingParams()).extend(prompt)
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
    """Count the equal choices of two models in some calls."""
    equal, total, first = 0, 0, ""
    for number, answers in enumerate(calls):
        ours, theirs = (np.concatenate([each.tokens for each in part]) for part in answers)
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
    """Return the keys and values that a call wrote, and its features and log-probabilities where
    they were requested, by name: [layers, nodes, width].
    """
    at = [(segment.row, torch.from_numpy(segment.slots).long()) for segment in call]
    states = {
        name: torch.stack([torch.cat([part[row, slots] for row, slots in at]) for part in parts])
        for name, parts in (("keys", model.cache.keys), ("values", model.cache.values))
    }
    if features:
        features_of_rows = [model.features(segment.row, segment.slots) for segment in call]
        states["features"] = torch.cat(features_of_rows)[None]
    scored = [each.logprobs for each in answers if each.logprobs is not None]
    if scored:
        numbers = np.concatenate(
            [np.column_stack((each.values, each.likeliest)) for each in scored]
        )
        states["log-probabilities"] = torch.from_numpy(numbers)[None].clamp(min=_MIN_LOGPROB)
    return states


def _distances(ours: Tensor, theirs: Tensor) -> Tensor:  # [layers, nodes, width] twice -> [nodes]
    """The distance of each node's states, relative to their length."""
    differences = (ours.float() - theirs.float()).square().sum((0, 2)).sqrt()
    return differences / theirs.float().square().sum((0, 2)).sqrt()
