"""The spec of a build: a flat record of shapes, validated when it is created, without anything
about devices or compilers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from inference.errors import InvalidRequest
from inference.files.artifact import Bucket, CompiledTarget, FusedPart, Manifest
from inference.sampling import CANDIDATES

TARGETS = ("cpu", "trn1", "inf2", "trn2", "trn3")
DTYPES = ("float32", "bfloat16", "float16")

_MAX_PLACES = 1 << 24
"""Maximum slots of all rows: accelerators may compute an index in float32."""
MAX_LEVELS = 16
"""Depths for which a verify graph computes noise; fewer if its trees have fewer nodes."""


@dataclass(frozen=True)
class CompileSpec(CompiledTarget):
    """The spec of a target to build. Its compiler flags are added to the builder's own.

    Raises InvalidRequest for values that cannot be built.
    """

    dtype: str = "float32"
    tensor_parallel: int = 1
    compiler_flags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, allowed in (("target", TARGETS), ("dtype", DTYPES)):
            if (value := getattr(self, name)) not in allowed:
                raise InvalidRequest(f"--{name} {value}: one of {', '.join(allowed)} is needed")
        check_target(self.target, self.tensor_parallel)
        if self.rows * self.cache_slots > _MAX_PLACES:
            raise InvalidRequest(
                f"--rows {self.rows}: {self.rows} rows of {self.cache_slots} slots have more than "
                f"the {_MAX_PLACES} places that a graph can number; take fewer or shorter rows"
            )
        _check_buckets(self)
        if self.fused is not None:
            _check_fused(self, self.fused)
        if self.features and self.fused is not None:
            raise InvalidRequest(
                "--features is for heads beside the target, and --fused puts a draft into its "
                "graphs: leave one out"
            )

    @classmethod
    def of(cls, manifest: Manifest) -> CompileSpec:
        """Return the spec of an artefact's own graphs, without a draft."""
        names = {column.name for column in fields(cls)} - {"fused"}
        return cls(**{name: getattr(manifest, name) for name in names})

    @property
    def capacity(self) -> int:
        """Usable slots of a row, for the sequence and one tree. They are followed by the junk slot,
        to which padding is written.
        """
        return self.sequence_length + self.max_tree_nodes

    @property
    def cache_slots(self) -> int:
        """Slots of a row, including the junk slot."""
        return self.capacity + 1


def least_nodes(dtype: str) -> int:
    """Return the minimum number of nodes of a graph. In float32 it is two, because kernels for a
    single row round differently from those for several.
    """
    return 2 if dtype == "float32" else 1


def verify_bucket(
    rows: int, nodes: int, slots: int, junk: int, *, sampled: bool, words: int = 0
) -> Bucket:
    """Return the bucket of a graph for trees, which chooses at every node."""
    levels = min(nodes, MAX_LEVELS)
    return Bucket(rows, nodes, slots, nodes, levels, sampled, junk, words=words)


def prefill_bucket(rows: int, nodes: int, slots: int, junk: int) -> Bucket:
    """Return the bucket of a graph for prompt chunks. It is greedy, since the tokens chosen for a
    chunk are not used.
    """
    return Bucket(rows, nodes, slots, 1, 1, False, junk)


def mask_words(vocabulary: int, ranks: int) -> int:
    """Return the number of 32-bit words of a mask with a bit for each id. Each rank's share is
    padded to whole words, so the last bits may be unused.
    """
    return ranks * -(-vocabulary // (32 * ranks))


def check_target(target: str, tensor_parallel: int) -> None:
    """Raise InvalidRequest for a number of ranks that the target does not support."""
    if target == "cpu" and tensor_parallel != 1:
        raise InvalidRequest(
            f"--tensor_parallel {tensor_parallel}: the cpu target is not sharded, leave it at 1"
        )


def _check_buckets(spec: CompileSpec) -> None:
    names = [bucket.name for bucket in spec.graphs]
    assert len(set(names)) == len(names), "no graph is built twice"
    for bucket in spec.graphs:
        of_cache = bucket.junk == spec.capacity and bucket.rows <= spec.rows
        assert of_cache, f"graph {bucket.name} is for the spec's cache"
    assert any(
        bucket.rows >= spec.rows
        and bucket.nodes >= spec.max_tree_nodes
        and bucket.slots >= spec.capacity
        for bucket in spec.buckets
        if bucket.everywhere
    ), "a graph for trees supports every call within the limits"


def _check_fused(spec: CompileSpec, fused: FusedPart) -> None:
    """Check that the draft's tree fits the target's limits."""
    shape, children = fused.shape, min(CANDIDATES, spec.vocabulary)
    if shape.nodes > spec.max_tree_nodes:
        raise InvalidRequest(
            f"a {shape} has {shape.nodes} nodes with its root: --max_tree_nodes "
            f"{spec.max_tree_nodes} is too small"
        )
    if max(shape.branches) > children:
        raise InvalidRequest(
            f"{max(shape.branches)} children of a node: at most {children} can be drafted"
        )
    longest = max(bucket.nodes for bucket in fused.prefill)
    assert longest > shape.inner, "the draft's graphs for prompts take what it reads in a round"
    assert any(
        bucket.rows == spec.rows and bucket.slots >= spec.capacity for bucket in fused.rounds
    ), "a round supports every session"
