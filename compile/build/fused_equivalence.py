"""Checks that a compiled round computes what the eager graph computes, and each row by itself.
Otherwise it may not serve a target.

Inputs are drawn at random, as in compile/build/equality.py. Rounding may decide a draft's
near-tie otherwise, which changes the tree and everything after it in that row. So rows are compared
as wholes. Keys and values are compared where the trees are equal.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from compile.build.equality import ROUNDING, ROUNDS, SAMPLINGS, distances
from inference.artifact import RoundBucket
from inference.backends.compiled import Graph
from inference.engine.graph_tree import blank_tree
from inference.errors import BadArtifact
from inference.model.round_graph import RoundGraph, round_inputs
from inference.model.sampler import Sampling

_PARTS = ("keys", "values", "draft_keys", "draft_values")
"""What a round returns after its answer."""


@torch.no_grad()
def check_round(
    eager: RoundGraph, compiled: Graph, bucket: RoundBucket, *, sequence_length: int
) -> None:
    """Raise BadArtifact unless trees, verdicts, keys and values are those of the eager graph, as
    its precision allows.
    """
    first, differing, total = eager.cache().keys[0], 0, 0
    allowed = ROUNDING[first.dtype]
    errors: dict[str, list[Tensor]] = {name: [] for name in _PARTS}
    for seed in range(ROUNDS):
        inputs = random_round(bucket, eager.decoder.vocabulary, len(first), sequence_length, seed)
        (expected, *theirs), (made, *ours) = eager(**inputs), compiled(**inputs)
        same = (made == expected).all(-1)
        differing, total = differing + int((~same).sum()), total + len(same)
        for name, one, other in zip(_PARTS, ours, theirs, strict=True):
            errors[name].append(distances(one[:, same], other[:, same]))
    if differing > max(1, total // (12 if first.dtype == torch.float32 else 2)):
        raise BadArtifact(
            f"graph {bucket.name}: {differing} of {total} rounds differ from the eager model's"
        )
    for name, found in errors.items():
        error = float(torch.cat(found).median())
        if not error <= allowed.states:
            raise BadArtifact(
                f"graph {bucket.name}: its {name} differ from the eager model's by {error:.1e} of "
                f"their length, not {allowed.states}"
            )


@torch.no_grad()
def check_round_independence(
    graph: Graph, bucket: RoundBucket, vocabulary: int, cache_rows: int, *, sequence_length: int
) -> None:
    """Raise BadArtifact if any bit of a row's answer depends on other rows, or the target's root on
    what was drafted below it.
    """
    inputs, other = (
        random_round(bucket, vocabulary, cache_rows, sequence_length, seed) for seed in (0, 1)
    )
    mixed = {name: torch.cat((tensor[:1], other[name][1:])) for name, tensor in inputs.items()}
    for name in ("rows", "draft_rows"):
        mixed[name] = inputs[name]
    alone, beside = graph(**inputs), graph(**mixed)
    names = ("answer", *_PARTS)
    for name, one, two in zip(names, alone, beside, strict=True):
        first = (one[0], two[0]) if name == "answer" else (one[:, 0], two[:, 0])
        if not torch.equal(*first):
            raise BadArtifact(
                f"graph {bucket.name}: a row's {name} change with the rows beside it, which would "
                "not be lossless"
            )
    redrafted = graph(**inputs | {"draft_context_mask": 1 - inputs["draft_context_mask"]})
    for name, one, two in zip(names[1:3], alone[1:3], redrafted[1:3], strict=True):
        if not torch.equal(one[:, :, 0], two[:, :, 0]):
            raise BadArtifact(
                f"graph {bucket.name}: the root's {name} change with what is drafted below it, "
                "which would not be lossless"
            )


def random_round(
    bucket: RoundBucket, vocabulary: int, cache_rows: int, sequence_length: int, seed: int
) -> dict[str, Tensor]:
    """Inputs of the bucket's shapes: random contexts, every second row with a pending token. Every
    row is sampled in another way.
    """
    rng, inputs, shape, rows = (
        np.random.default_rng(seed),
        round_inputs(bucket),
        bucket.shape,
        bucket.rows,
    )
    tree = blank_tree(shape)
    pending = (np.arange(rows) + seed) % 2
    below = np.zeros((rows, 1 + shape.inner, 1 + shape.inner), dtype=np.int32)
    below[:, 0, 0], below[:, 1:, 1:], below[:, 1:, 0] = (
        1,
        tree.mask[: shape.inner, : shape.inner],
        pending[:, None],
    )
    base = rng.integers(1, max(2, sequence_length - shape.depth - 1), (rows, 1))
    entry = np.concatenate(
        [(base - 1) * pending[:, None], base + tree.depths[None, : shape.inner]], 1
    )
    drawn = {
        "rows": rng.permutation(cache_rows)[:rows],
        "positions": np.minimum(base + tree.depths[None], sequence_length - 1),
        "context_mask": rng.random((rows, 1, bucket.slots)) < rng.random(),
        "tree_mask": np.tile(tree.mask, (rows, 1, 1)),
        "draft_tokens": rng.integers(0, vocabulary, (rows, 2)),
        "draft_rows": rng.permutation(cache_rows)[:rows],
        "draft_positions": np.minimum(entry, sequence_length - 1),
        "draft_context_mask": rng.random((rows, 1, bucket.slots)) < rng.random(),
        "draft_tree_mask": below,
    }
    inputs |= {
        name: torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32))
        for name, array in drawn.items()
    }
    if bucket.sampled:
        params = [SAMPLINGS[(row + seed) % len(SAMPLINGS)] for row in range(rows)]
        inputs |= Sampling.of(params, torch.device("cpu"))._asdict()
    return inputs
