"""Chooses the graphs that are built: those of the given sizes, or a default few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple, TypeVar

from compile.spec import SAMPLINGS, CompileSpec, prefill_bucket, verify_bucket
from inference.artifact import Bucket
from inference.errors import InvalidRequest

BucketKind = TypeVar("BucketKind", bound=Bucket)

MOST_GRAPHS = 20
"""Graphs of a target, by default: their programs take memory beside the weights."""
_TREES = (1, 4, 16)
"""Nodes of trees, by default, below the most."""
_FEW_TREES = (1, 16)
_STEP = 64
_SHORT_CACHE = 1536
"""Caches of up to so many slots are always read whole: reading half of one saves little."""
SAMPLED = dict(zip(SAMPLINGS, ((False, True), (False,), (True,)), strict=True))
"""Whether the graphs of a tree's shape are sampled, by SAMPLINGS."""


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
class Limits:
    """Limits of what the artefact promises to serve."""

    rows: int  # rows of the cache
    chunk: int  # prompt tokens in one call
    tree_nodes: int
    least_nodes: int
    sequence_length: int

    @property
    def capacity(self) -> int:
        return self.sequence_length + self.tree_nodes

    def required(self) -> tuple[CallShape, CallShape, CallShape]:
        """Shapes without which some call could not be served, or the target alone only at the cost
        of a tree.
        """
        alone, largest = self.least_nodes, max(self.least_nodes, self.tree_nodes)
        return (
            CallShape(True, 1, self.chunk, self.capacity),
            CallShape(False, self.rows, largest, self.capacity),
            CallShape(False, self.rows, alone, self.capacity),
        )


@dataclass(frozen=True)
class Sizes:
    """Sizes of graphs; None where they were not given."""

    prefill: tuple[int, ...] | None = None  # nodes of a prompt's chunk
    trees: tuple[int, ...] | None = None  # nodes
    slots: tuple[int, ...] | None = None
    sampling: str = "both"  # one of SAMPLINGS
    words: int = 0  # of masks that graphs for trees take, too; 0: none takes masks
    few: bool = False  # fewer sizes of trees, where they were not given
    windows: int = 2  # parts of the cache that prompts read, where slots were not given
    most: int = MOST_GRAPHS  # graphs, where no sizes of trees were given

    @property
    def ways(self) -> tuple[tuple[bool, int], ...]:
        """Graphs of a tree's shape: whether each is sampled, and the words of its masks."""
        masked = ((True, self.words),) if self.words else ()
        return (*((sampled, 0) for sampled in SAMPLED[self.sampling]), *masked)


def graphs_of(sizes: Sizes, limits: Limits) -> tuple[Bucket, ...]:
    """Every combination of the given sizes for one session at a time, and for all rows at once
    what is left out of them: trees of each size over the whole cache.

    By default trees have 1, 4, 16 nodes or the most. Graphs of one session read half the cache or
    all of it where there is one row, else all of it. Where few are wanted, trees of 4 nodes are
    left out, and of all rows what the limits do not need.
    """
    smallest, largest = limits.least_nodes, max(limits.least_nodes, limits.tree_nodes)
    usual = _FEW_TREES if sizes.few else _TREES
    trees = sizes.trees or (*(nodes for nodes in usual if nodes < largest), largest)
    slots = sizes.slots or _windows(limits.capacity, 2)
    _check_sizes("--slots", slots, limits.capacity)
    _check_sizes("--tree_sizes", trees, largest)
    shapes: set[CallShape] = set()
    for nodes in {max(smallest, nodes) for nodes in trees}:
        shapes |= {CallShape(False, 1, nodes, size) for size in tree_slots(sizes, limits)}
        if sizes.trees or not sizes.few:
            shapes.add(CallShape(False, limits.rows, nodes, limits.capacity))
    chunks = sizes.prefill or (limits.chunk,)
    if sizes.slots is None and len(chunks) == 1:
        slots = _windows(limits.capacity, sizes.windows)
    shapes |= {CallShape(True, 1, nodes, size) for nodes, size in product(chunks, slots)}
    buckets = tuple(
        shape.bucket(limits.capacity, sampled=sampled, words=words)
        for shape in sorted(shapes | {*limits.required()})
        for sampled, words in (((False, 0),) if shape.prefill else sizes.ways)
    )
    return _within(sizes.most, buckets) if sizes.trees is None else buckets


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


def first_graphs(spec: CompileSpec, limits: Limits) -> CompileSpec:
    """The spec with as few of its graphs as serve everything that it promises, over the whole
    cache: a prompt chunk of one session, and with all rows the target alone and the largest tree.
    Their cache is the whole plan's, so the same directory takes the other graphs later.
    """
    required = set(limits.required())
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


def tree_slots(sizes: Sizes, limits: Limits) -> tuple[int, ...]:
    """The numbers of cache slots that graphs for trees of one session read."""
    if sizes.slots is None and limits.rows > 1:
        return (limits.capacity,)
    return sizes.slots or _windows(limits.capacity, 2)


def _check_sizes(flag: str, sizes: Sequence[int], largest: int) -> None:
    for size in sizes:
        if not 1 <= size <= largest:
            raise InvalidRequest(f"{flag} {size}: sizes lie between 1 and {largest}")
