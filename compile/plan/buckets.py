"""Chooses the graphs to build: for requested sizes, or a small default selection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from compile.spec import CompileSpec, prefill_bucket, verify_bucket
from inference.files.artifact import Bucket

BucketKind = TypeVar("BucketKind", bound=Bucket)

MAX_GRAPHS = 20
"""Default limit of a target's graphs, since their programs need memory besides the weights."""
_TREES = (1, 4, 16)
"""Default numbers of nodes for trees, besides the maximum."""
_FEW_TREES = (1, 16)
_STEP = 64
_SHORT_CACHE = 1536
"""Caches of up to this number of slots are always read whole: reading half saves little time."""
SAMPLED = {"both": (False, True), "greedy": (False,), "sampled": (True,)}
"""By value of --sampling: whether to build greedy (False) and sampled (True) graphs for trees."""


class CallShape(NamedTuple):
    """The shape of a graph. It can run any call of its kind that is not larger in any dimension."""

    prefill: bool
    rows: int
    nodes: int
    slots: int  # cache slots that are read

    def bucket(self, junk: int, *, sampled: bool, words: int = 0) -> Bucket:
        """Return the bucket of a graph of this shape. Prompt graphs are always greedy."""
        if self.prefill:
            return prefill_bucket(self.rows, self.nodes, self.slots, junk)
        return verify_bucket(self.rows, self.nodes, self.slots, junk, sampled=sampled, words=words)


@dataclass(frozen=True)
class GraphSizes:
    """The sizes that the artefact supports, and the sizes of its graphs if they were requested."""

    rows: int  # rows of the cache
    chunk: int  # maximum prompt tokens per call
    tree_nodes: int
    least_nodes: int
    sequence_length: int
    trees: tuple[int, ...] | None = None  # nodes
    sampling: str = "both"  # a key of SAMPLED
    words: int = 0  # words per mask, for additional tree graphs with masks; 0: no such graphs
    few: bool = False  # fewer tree sizes, unless they were requested
    windows: int = 2  # number of prompt graphs that read different parts of the cache
    max_graphs: int = MAX_GRAPHS  # unless tree sizes were requested

    @property
    def capacity(self) -> int:
        return self.sequence_length + self.tree_nodes

    @property
    def largest(self) -> int:
        """Nodes of the graph for the largest tree."""
        return max(self.least_nodes, self.tree_nodes)

    @property
    def ways(self) -> tuple[tuple[bool, int], ...]:
        """The variants of tree graphs: whether they are sampled, and words per mask."""
        masked = ((True, self.words),) if self.words else ()
        return (*((sampled, 0) for sampled in SAMPLED[self.sampling]), *masked)

    @property
    def tree_slots(self) -> tuple[int, ...]:
        """The numbers of cache slots that tree graphs for one session read."""
        return (self.capacity,) if self.rows > 1 else _windows(self.capacity, 2)

    def required(self) -> tuple[CallShape, CallShape, CallShape]:
        """Return the shapes without which some calls could not run, or a pass without a draft would
        take as long as a tree.
        """
        return (
            CallShape(True, 1, self.chunk, self.capacity),
            CallShape(False, self.rows, self.largest, self.capacity),
            CallShape(False, self.rows, self.least_nodes, self.capacity),
        )


def graphs_of(sizes: GraphSizes) -> tuple[Bucket, ...]:
    """Return the graphs for prompt chunks and for trees of each size, for one session and all rows.

    By default trees have 1, 4, 16 or the maximum number of nodes. A target with one row also gets
    graphs that read half the cache. `few` omits trees of 4 nodes, and for all rows every size that
    is not required.
    """
    usual = _FEW_TREES if sizes.few else _TREES
    trees = sizes.trees or (*(nodes for nodes in usual if nodes < sizes.largest), sizes.largest)
    shapes: set[CallShape] = set()
    for nodes in {max(sizes.least_nodes, nodes) for nodes in trees}:
        shapes |= {CallShape(False, 1, nodes, size) for size in sizes.tree_slots}
        if sizes.trees or not sizes.few:
            shapes.add(CallShape(False, sizes.rows, nodes, sizes.capacity))
    windows = _windows(sizes.capacity, sizes.windows)
    shapes |= {CallShape(True, 1, sizes.chunk, size) for size in windows}
    buckets = tuple(
        shape.bucket(sizes.capacity, sampled=sampled, words=words)
        for shape in sorted(shapes | {*sizes.required()})
        for sampled, words in (((False, 0),) if shape.prefill else sizes.ways)
    )
    return _within(sizes.max_graphs, buckets) if sizes.trees is None else buckets


def _within(limit: int, buckets: Sequence[Bucket]) -> tuple[Bucket, ...]:
    """Drop replaceable graphs until `limit` remain: greedy graphs first, and those of the largest
    trees, which lose the smallest share of their time.
    """
    spare = sorted(_spare(buckets), key=lambda graph: (not graph.sampled, graph.nodes, graph.rows))
    dropped = spare[-(len(buckets) - limit) :] if len(buckets) > limit else []
    return tuple(bucket for bucket in buckets if bucket not in dropped)


def _spare(buckets: Sequence[BucketKind]) -> set[BucketKind]:
    """Return the graphs that another one of the same shape can replace: sampled graphs also support
    temperature 0, and graphs with masks also sessions without masks.
    """
    replaced = {replace(bucket, words=0, sampled=False) for bucket in buckets if bucket.sampled}
    replaced |= {replace(bucket, words=0) for bucket in buckets if bucket.masked}
    return replaced.intersection(buckets)


def first_graphs(spec: CompileSpec, sizes: GraphSizes) -> CompileSpec:
    """Return the spec with the fewest graphs that support all calls, reading the whole cache: for
    one session a prompt chunk, and for all rows the largest tree and a pass without a draft. The
    cache keeps its size, so the other graphs can be added to the same directory later.
    """
    required = set(sizes.required())
    buckets = [
        bucket
        for bucket in spec.buckets
        if CallShape(not bucket.everywhere, bucket.rows, bucket.nodes, bucket.slots) in required
    ]
    if spec.fused is None:
        return replace(spec, buckets=_without_spare(buckets))
    rounds = [
        bucket
        for bucket in spec.fused.rounds
        if bucket.rows == spec.rows and bucket.slots == spec.capacity
    ]
    return replace(
        spec,
        buckets=_without_spare(buckets),
        fused=replace(spec.fused, rounds=_without_spare(rounds)),
    )


def _without_spare(buckets: Sequence[BucketKind]) -> tuple[BucketKind, ...]:
    spare = _spare(buckets)
    return tuple(bucket for bucket in buckets if bucket not in spare)


def _windows(capacity: int, count: int) -> tuple[int, ...]:
    """Return the slots of one part of a cache, of two, up to all, in multiples of _STEP."""
    if capacity <= _SHORT_CACHE:
        return (capacity,)
    sizes = (-(-capacity * number // (count * _STEP)) * _STEP for number in range(1, count))
    return (*(min(size, capacity) for size in sizes), capacity)
