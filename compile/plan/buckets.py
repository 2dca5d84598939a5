"""Chooses the graphs that are built: those of the given sizes, or a default few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple, TypeVar

from compile.spec import CompileSpec, prefill_bucket, verify_bucket
from inference.errors import InvalidRequest
from inference.files.artifact import Bucket

BucketKind = TypeVar("BucketKind", bound=Bucket)

MAX_GRAPHS = 20
"""Graphs of a target, by default: their programs take memory beside the weights."""
_TREES = (1, 4, 16)
"""Nodes of trees, by default, below the most."""
_FEW_TREES = (1, 16)
_STEP = 64
_SHORT_CACHE = 1536
"""Caches of up to this number of slots are always read whole: reading half saves little."""
SAMPLED = {"both": (False, True), "greedy": (False,), "sampled": (True,)}
"""Whether the graphs of a tree's shape are sampled, by --sampling."""


class CallShape(NamedTuple):
    """The shape of a graph: it serves every call of its kind that is larger in no dimension."""

    prefill: bool
    rows: int
    nodes: int
    slots: int  # cache slots that are read

    def bucket(self, junk: int, *, sampled: bool, words: int = 0) -> Bucket:
        """The bucket of a graph of this shape. A prompt's is greedy in any case."""
        if self.prefill:
            return prefill_bucket(self.rows, self.nodes, self.slots, junk)
        return verify_bucket(self.rows, self.nodes, self.slots, junk, sampled=sampled, words=words)


@dataclass(frozen=True)
class GraphSizes:
    """Sizes of what the artefact promises to serve and, where they were given, of its graphs."""

    rows: int  # rows of the cache
    chunk: int  # prompt tokens in one call
    tree_nodes: int
    least_nodes: int
    sequence_length: int
    prefill: tuple[int, ...] | None = None  # nodes of a prompt's chunk
    trees: tuple[int, ...] | None = None  # nodes
    slots: tuple[int, ...] | None = None
    sampling: str = "both"  # a key of SAMPLED
    words: int = 0  # of masks that graphs for trees take, too; 0: none takes masks
    few: bool = False  # fewer sizes of trees, where they were not given
    windows: int = 2  # parts of the cache that prompts read, where slots were not given
    max_graphs: int = MAX_GRAPHS  # where no sizes of trees were given

    @property
    def capacity(self) -> int:
        return self.sequence_length + self.tree_nodes

    @property
    def largest(self) -> int:
        """Nodes of the largest tree's graph."""
        return max(self.least_nodes, self.tree_nodes)

    @property
    def ways(self) -> tuple[tuple[bool, int], ...]:
        """Graphs of a tree's shape: whether each is sampled, and the words of its masks."""
        masked = ((True, self.words),) if self.words else ()
        return (*((sampled, 0) for sampled in SAMPLED[self.sampling]), *masked)

    @property
    def tree_slots(self) -> tuple[int, ...]:
        """The numbers of cache slots that graphs for trees of one session read."""
        if self.slots is None and self.rows > 1:
            return (self.capacity,)
        return self.slots or _windows(self.capacity, 2)

    def required(self) -> tuple[CallShape, CallShape, CallShape]:
        """Shapes without which some call could not be served, or the target alone only at the cost
        of a tree.
        """
        return (
            CallShape(True, 1, self.chunk, self.capacity),
            CallShape(False, self.rows, self.largest, self.capacity),
            CallShape(False, self.rows, self.least_nodes, self.capacity),
        )


def graphs_of(sizes: GraphSizes) -> tuple[Bucket, ...]:
    """Every combination of the given sizes for one session at a time, and for all rows at once
    what is left out of them: trees of each size over the whole cache.

    By default trees have 1, 4, 16 nodes or the most. Graphs of one session read half the cache or
    all of it where there is one row, else all of it. Where few are wanted, trees of 4 nodes are
    left out, and of all rows what is not required.
    """
    usual = _FEW_TREES if sizes.few else _TREES
    trees = sizes.trees or (*(nodes for nodes in usual if nodes < sizes.largest), sizes.largest)
    slots = sizes.slots or _windows(sizes.capacity, 2)
    for size in slots:
        if size > sizes.capacity:
            raise InvalidRequest(f"--slots {size}: this cache has {sizes.capacity} of them")
    shapes: set[CallShape] = set()
    for nodes in {max(sizes.least_nodes, nodes) for nodes in trees}:
        shapes |= {CallShape(False, 1, nodes, size) for size in sizes.tree_slots}
        if sizes.trees or not sizes.few:
            shapes.add(CallShape(False, sizes.rows, nodes, sizes.capacity))
    chunks = sizes.prefill or (sizes.chunk,)
    if sizes.slots is None and len(chunks) == 1:
        slots = _windows(sizes.capacity, sizes.windows)
    shapes |= {CallShape(True, 1, nodes, size) for nodes, size in product(chunks, slots)}
    buckets = tuple(
        shape.bucket(sizes.capacity, sampled=sampled, words=words)
        for shape in sorted(shapes | {*sizes.required()})
        for sampled, words in (((False, 0),) if shape.prefill else sizes.ways)
    )
    return _within(sizes.max_graphs, buckets) if sizes.trees is None else buckets


def _within(limit: int, buckets: Sequence[Bucket]) -> tuple[Bucket, ...]:
    """At most so many, as far as spare ones can be left out: greedy ones first, and those of the
    largest trees, which lose the smallest share of their time.
    """
    spare = sorted(_spare(buckets), key=lambda each: (not each.sampled, each.nodes, each.rows))
    dropped = spare[-(len(buckets) - limit) :] if len(buckets) > limit else []
    return tuple(bucket for bucket in buckets if bucket not in dropped)


def _spare(buckets: Sequence[BucketKind]) -> set[BucketKind]:
    """The graphs in whose place another one of the same shape serves: a sampled graph takes
    temperature 0, too, and one with masks takes texts that have none.
    """
    replaced = {replace(bucket, words=0, sampled=False) for bucket in buckets if bucket.sampled}
    replaced |= {replace(bucket, words=0) for bucket in buckets if bucket.masked}
    return replaced.intersection(buckets)


def first_graphs(spec: CompileSpec, sizes: GraphSizes) -> CompileSpec:
    """The spec with as few of its graphs as serve everything that it promises, over the whole
    cache: a prompt chunk of one session, and with all rows the target alone and the largest tree.
    Their cache is the whole plan's, so the same directory takes the other graphs later.
    """
    required = set(sizes.required())
    buckets = [
        bucket
        for bucket in spec.buckets
        if CallShape(not bucket.everywhere, bucket.rows, bucket.nodes, bucket.slots) in required
    ]
    if spec.fused is None:
        return replace(spec, buckets=_without_spare(buckets))
    whole = [
        bucket
        for bucket in spec.fused.rounds
        if bucket.rows == spec.rows and bucket.slots == spec.capacity
    ]
    return replace(
        spec,
        buckets=_without_spare(buckets),
        fused=replace(spec.fused, rounds=_without_spare(whole)),
    )


def _without_spare(buckets: Sequence[BucketKind]) -> tuple[BucketKind, ...]:
    spare = _spare(buckets)
    return tuple(bucket for bucket in buckets if bucket not in spare)


def _windows(capacity: int, parts: int) -> tuple[int, ...]:
    """One part of a cache's slots, two, and so on to all: multiples of _STEP, but for the last."""
    if capacity <= _SHORT_CACHE:
        return (capacity,)
    sizes = (-(-capacity * part // (parts * _STEP)) * _STEP for part in range(1, parts))
    return (*(min(size, capacity) for size in sizes), capacity)
