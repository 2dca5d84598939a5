"""The graphs of --quick: the fewest of a plan that serve every session, and what the others are
for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from compile.plan.workload import CallShape, Limits
from compile.spec import CompileSpec, least_nodes
from inference.artifact import Bucket, DraftBucket, RoundBucket

BucketKind = TypeVar("BucketKind", bound=Bucket)
_WIDTH = 36


def first_graphs(spec: CompileSpec, limits: Limits) -> CompileSpec:
    """The spec with as few of its graphs as serve everything that it promises, over the whole
    cache: a prompt chunk of one session, and with all rows the target alone and the largest tree.
    Their cache is the whole plan's, so the same directory takes the other graphs later.
    """
    required = set(limits.required())
    buckets = [
        bucket
        for bucket in spec.buckets
        if CallShape(_is_prefill(bucket), bucket.rows, bucket.nodes, bucket.slots) in required
    ]
    if spec.fused is None:
        return replace(spec, buckets=_one_sampling(buckets))
    whole = [
        bucket
        for bucket in spec.fused.rounds
        if bucket.rows == spec.rows and bucket.slots == spec.capacity
    ]
    return replace(
        spec,
        buckets=_one_sampling(buckets),
        fused=replace(spec.fused, rounds=_one_sampling(whole)),
    )


def purposes(spec: CompileSpec, graphs: Sequence[Bucket]) -> Iterator[str]:
    """A line for each of the spec's graphs that are given: its name, and what it is for."""
    for bucket in graphs:
        yield f"{bucket.name:<{_WIDTH}}{purpose(spec, bucket)}"


def purpose(spec: CompileSpec, bucket: Bucket) -> str:
    """What one of the spec's graphs is for."""
    if isinstance(bucket, RoundBucket):
        what = f"rounds in one graph: a {bucket.shape} is drafted, verified and accepted"
    elif _is_prefill(bucket):
        reader = "the draft's prompts" if isinstance(bucket, DraftBucket) else "prompts"
        what = f"{reader}, {bucket.nodes} tokens a call"
    elif bucket.nodes <= least_nodes(spec.dtype):
        what = "the target alone"
    else:
        what = f"trees of up to {bucket.nodes} nodes"
    parts = [what]
    if spec.rows > 1:
        parts.append("one session" if bucket.rows == 1 else f"up to {bucket.rows} sessions")
    if bucket.slots < spec.capacity:
        parts.append(f"while {bucket.slots} slots hold a session")
    if not _is_prefill(bucket):
        parts.append("any temperature" if bucket.sampled else "temperature 0")
    return ", ".join(parts)


def _is_prefill(bucket: Bucket) -> bool:
    return not bucket.everywhere


def _one_sampling(buckets: Sequence[BucketKind]) -> tuple[BucketKind, ...]:
    """The buckets, without greedy graphs for trees where a sampled graph does the same."""
    sampled = {replace(bucket, sampled=False) for bucket in buckets if bucket.sampled}
    return tuple(bucket for bucket in buckets if bucket not in sampled)
