"""Calls of compiled graphs: whether a graph holds a call, the call's inputs by name, and each row's
share of its outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inference.artifact import Bucket
from inference.backends import Chosen, Segment
from inference.backends.batch import BatchShape, pad
from inference.model.cache import KeysValues
from inference.model.sampler import Sampling
from inference.sampling import SamplingParams
from inference.tree import IntArray


def unstacked(keys: Tensor, values: Tensor) -> KeysValues:
    """Return what a graph returned as new keys and values, layer by layer."""
    return KeysValues(keys.unbind(), values.unbind())


def picked(bucket: Bucket, chosen: Tensor, segments: Sequence[Segment]) -> list[Chosen]:
    """Return each segment's chosen tokens, from what a bucket's graph returned for a call."""
    table = chosen.numpy().astype(np.int32)
    return [
        Chosen(table[row, segment.pick if bucket.everywhere else slice(len(segment.pick))])
        for row, segment in enumerate(segments)
    ]


def cost(bucket: Bucket) -> tuple[int, int, int, bool]:
    """Sort key for what a call costs: nodes computed, slots read, choices made, noise."""
    return bucket.rows * bucket.nodes, bucket.slots, bucket.picks, bucket.sampled


def holds(bucket: Bucket, segments: Sequence[Segment]) -> bool:
    """Whether one call of the bucket's graph serves all these rows."""
    levels = bucket.levels if bucket.sampled else bucket.nodes  # positions that have noise
    return len(segments) <= bucket.rows and all(
        fits(bucket, segment) and np.ptp(segment.positions[segment.pick]) < levels
        for segment in segments
    )


def inputs_of(bucket: Bucket, segments: Sequence[Segment]) -> dict[str, Tensor]:
    """Return a graph's inputs by name: the segments, then idle rows."""
    shape = BatchShape(bucket.rows, bucket.nodes, bucket.picks, 1, bucket.slots)
    batch = pad(segments, shape, bucket.junk)
    inputs = {name: torch.from_numpy(array) for name, array in batch.arrays().items()}
    if bucket.everywhere:
        del inputs["pick"]
    if bucket.sampled:
        idle = [SamplingParams()] * (bucket.rows - len(segments))
        params = [*(segment.params for segment in segments), *idle]
        inputs["after"] = torch.from_numpy(_after(bucket, segments))
        sampling = Sampling.of(params, torch.device("cpu"))._asdict()
        inputs |= {name: part for name, part in sampling.items() if name != "min_p"}
    return inputs


def _after(bucket: Bucket, segments: Sequence[Segment]) -> IntArray:  # [B, P]
    """Return the positions of the tokens to be chosen.

    A node that is not picked has the least of its row's, since a graph makes noise for few
    positions from there on.
    """
    after = np.zeros((bucket.rows, bucket.picks), dtype=np.int32)
    for row, segment in enumerate(segments):
        positions = segment.positions[segment.pick] + 1
        after[row] = positions.min()
        after[row, segment.pick if bucket.everywhere else slice(len(positions))] = positions
    return after


def fits(bucket: Bucket, segment: Segment) -> bool:
    """Whether the graph has room for this row. The depth of its tree is not looked at."""
    room = (
        len(segment.tokens) <= bucket.nodes
        and len(segment.pick) <= bucket.picks
        and segment.context.shape[1] <= bucket.slots
    )
    return room and segment.context.shape[0] == 1 and (bucket.sampled or segment.params.greedy)
