"""Checks that a compiled graph computes what the eager graph computes, and each node by itself.
Otherwise it may not serve a target.

Inputs are drawn at random: a full and scattered context, random trees, and all ways of sampling in
one batch. Rounding may differ between kernels. Choices may then differ where two tokens' scores are
that close, and at the edge of a nucleus.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from inference.artifact import Bucket
from inference.backends.compiled import Graph
from inference.errors import BadArtifact
from inference.model.noise import noise
from inference.model.sampler import Sampling
from inference.model.verify_graph import VerifyGraph, example_inputs
from inference.sampling import SamplingParams

ROUNDS = 3
_NAMES = ("keys", "values", "features")
"""What a graph returns behind its choices; features only where it was built to."""


class Tolerance(NamedTuple):
    """How far rounding may move a graph's results.

    A node's states are its keys or values of all layers. The median node counts, because a few of
    the random inputs amplify any rounding.
    """

    states: float  # distance of a node's states, as a part of their length
    scores: float  # distance of two choices' scores, as a part of the greatest


ROUNDING = {
    torch.float32: Tolerance(1e-4, 1e-4),
    torch.float16: Tolerance(3e-2, 1e-2),
    torch.bfloat16: Tolerance(1e-1, 5e-2),
}

SAMPLINGS = (
    SamplingParams(1.0, seed=7),
    SamplingParams(),
    SamplingParams(0.7, top_k=20, seed=2**40 + 1),
    SamplingParams(1.0, top_p=0.9, seed=3),
)


@torch.no_grad()
def check_equivalence(
    eager: VerifyGraph,
    compiled: Graph,
    bucket: Bucket,
    *,
    sequence_length: int,
) -> None:
    """Raise BadArtifact unless keys, values, features and choices are those of the eager graph,
    within the tolerance of its precision.
    """
    first = eager.cache().keys[0]
    allowed = ROUNDING[first.dtype]
    differing = total = 0
    errors: dict[str, list[Tensor]] = {}
    for seed in range(ROUNDS):
        inputs = random_inputs(bucket, eager.decoder.vocabulary, len(first), sequence_length, seed)
        expected, made = eager(**inputs), compiled(**inputs)
        states = zip(_states(made), _states(expected), strict=True)
        for name, (ours, theirs) in zip(_NAMES, states, strict=False):
            errors.setdefault(name, []).append(distances(ours, theirs))
        differing += int(
            (
                (made[0] != expected[0])
                & (_gap(eager, inputs, made[0], expected[0]) > allowed.scores)
            ).sum()
        )
        total += made[0].numel()
    for name, found in errors.items():
        error = float(torch.cat(found).median())
        if not error <= allowed.states:
            raise BadArtifact(
                f"graph {bucket.name}: its {name} differ from the eager model's by {error:.1e} of "
                f"their length, not {allowed.states}"
            )
    if differing > 1 + total // 50:
        raise BadArtifact(
            f"graph {bucket.name}: {differing} of {total} choices differ from the eager model's by "
            "more than rounding"
        )


def _states(outputs: Sequence[Tensor]) -> list[Tensor]:
    """What a graph returned behind its choices, each [layers, B, T, width]; features as one."""
    return [part if part.dim() == 4 else part[None] for part in outputs[1:]]


def distances(ours: Tensor, theirs: Tensor) -> Tensor:  # [layers, B, T, width] twice -> [B * T]
    """The distance of each node's states, relative to their length."""
    errors, lengths = (
        part.float().square().sum((0, 3)).sqrt() for part in (ours.float() - theirs.float(), theirs)
    )
    return (errors / lengths).flatten()


@torch.no_grad()
def check_row_independence(
    graph: Graph, bucket: Bucket, vocabulary: int, *, sequence_length: int
) -> None:
    """Raise BadArtifact if any bit of a node's result depends on nodes that it does not see or on
    other rows.
    """
    inputs, other = (
        random_inputs(bucket, vocabulary, bucket.rows, sequence_length, seed) for seed in (0, 1)
    )
    for name, value in (("pick", 0), ("after", inputs["positions"][:, 0] + 1)):
        if name in inputs:
            inputs[name][:, 0] = value
    other["tokens"][0, 0] = inputs["tokens"][0, 0]
    other["positions"][0] += (
        inputs["positions"][0, 0] - other["positions"][0, 0]
    )  # the same root, above another tree
    for name in ("context_mask", "rows", "pick", "after", "temperature", "top_k", "top_p", "seed"):
        if name in inputs:
            other[name][0] = inputs[name][0]
    other["tree_mask"][0, 0] = inputs["tree_mask"][0, 0]
    made, changed = graph(**inputs), graph(**other)
    pairs = [(made[0][None], changed[0][None]), *zip(_states(made), _states(changed), strict=True)]
    for name, (ours, theirs) in zip(("choice", *_NAMES), pairs, strict=False):
        if not torch.equal(ours[:, 0, 0], theirs[:, 0, 0]):
            raise BadArtifact(
                f"graph {bucket.name}: the root's {name} change with the tokens beside it, which "
                "would not be lossless"
            )


def random_inputs(
    bucket: Bucket, vocabulary: int, cache_rows: int, sequence_length: int, seed: int
) -> dict[str, Tensor]:
    """Inputs of the bucket's shapes: random trees above a random context. Every row is sampled in
    another way.
    """
    rng, inputs = np.random.default_rng(seed), example_inputs(bucket)
    depths, masks = zip(*(_random_tree(bucket, rng) for _ in range(bucket.rows)), strict=True)
    base = rng.integers(0, max(1, sequence_length - bucket.nodes), (bucket.rows, 1))
    drawn = {
        "tokens": rng.integers(0, vocabulary, (bucket.rows, bucket.nodes)),
        "rows": rng.permutation(cache_rows)[: bucket.rows],
        "positions": np.minimum(base + np.stack(depths), sequence_length - 1),
        "context_mask": rng.random((bucket.rows, 1, bucket.slots)) < rng.random(),
        "tree_mask": np.stack(masks),
    }
    pick = np.arange(bucket.nodes)[-bucket.picks :]
    if not bucket.everywhere:
        drawn["pick"] = np.tile(pick, (bucket.rows, 1))
    if bucket.sampled:
        drawn["after"] = drawn["positions"][:, pick] + 1
    inputs |= {
        name: torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32))
        for name, array in drawn.items()
    }
    if bucket.sampled:
        params = [SAMPLINGS[(row + seed) % len(SAMPLINGS)] for row in range(bucket.rows)]
        inputs |= Sampling.of(params, torch.device("cpu"))._asdict()
    return inputs


def _random_tree(bucket: Bucket, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Depths [T] and mask [T, T] of a random tree; for prefill, of a prompt's chain. Depths stay
    within what the graph makes noise for.
    """
    depths, mask = np.zeros(bucket.nodes, dtype=np.int32), np.eye(bucket.nodes, dtype=np.bool_)
    levels = bucket.levels if bucket.sampled else bucket.nodes
    for node in range(1, bucket.nodes):
        parent = node - 1 if bucket.picks == 1 else int(rng.integers(0, node))
        if depths[parent] + 1 < levels:
            depths[node], mask[node] = depths[parent] + 1, mask[node] | mask[parent]
    return depths, mask


def _gap(
    eager: VerifyGraph, inputs: dict[str, Tensor], ours: Tensor, theirs: Tensor
) -> Tensor:  # [B, P]
    """The distance of two choices by the eager graph's own scores, relative to the greatest."""
    names = ("tokens", "rows", "positions", "context_mask", "tree_mask")
    given = (*(inputs[name] for name in names), inputs.get("pick"))
    scores = eager.decoder.logits(eager.decoder(*given, eager.cache()).states)
    greatest = scores.abs().amax(-1)
    if "seed" in inputs:
        sampling = Sampling(*(inputs[name] for name in Sampling._fields))
        scores = sampling.scaled(scores)
        greatest = scores.abs().amax(-1)
        ids = torch.arange(scores.shape[-1], dtype=torch.int32)
        scores = scores + sampling.weigh(
            noise(sampling.seed[:, None, None], inputs["after"][:, :, None], ids)
        )
    both = torch.gather(
        scores, -1, torch.stack((ours, theirs), -1).to(torch.int64).clamp(0, scores.shape[-1] - 1)
    )
    return (both[..., 0] - both[..., 1]).abs() / greatest
