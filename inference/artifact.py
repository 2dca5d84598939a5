"""A compiled target on disk: what it is, which files it has, and whether they are what was built.

`compile` writes artefacts, backends load them; both go through here. A directory holds manifest.json, the graphs, the weights,
and the tokenizer's files. Graphs are executable code: nothing is loaded before its hash is checked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from inference.branches import Branches
from inference.errors import BadArtifact

SCHEMA = 1
MANIFEST = "manifest.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


@dataclass(frozen=True, order=True)
class Bucket:
    """The fixed shapes of one graph.

    rows: sequences in a call.  nodes: new nodes a row.  slots: cache slots it reads.  picks: nodes chosen at (1: prefill).
    levels: distinct positions that noise is made for, the depth of the deepest tree plus one.  sampled: takes the sampling
    inputs; otherwise greedy.  junk: the slot that padding is written to, the last of every row's cache.
    """

    rows: int
    nodes: int
    slots: int
    picks: int
    levels: int
    sampled: bool
    junk: int

    def __post_init__(self) -> None:
        if not (self.rows >= 1 and self.nodes >= 1 and 1 <= self.slots <= self.junk + 1):
            raise BadArtifact(f"no such bucket: {self}")
        if self.picks not in (1, self.nodes) or not 1 <= self.levels <= self.nodes:
            raise BadArtifact(
                f"a bucket picks one node or all, on as many levels as it has nodes at most: got {self}"
            )

    @property
    def name(self) -> str:
        """Names the bucket's files and graph."""
        kind = "sampled" if self.sampled else "greedy"
        return f"{'prefill' if self.picks == 1 < self.nodes else 'verify'}_b{self.rows}_t{self.nodes}_s{self.slots}_{kind}"


@dataclass(frozen=True, order=True)
class DraftBucket(Bucket):
    """A graph of the draft beside a target, in which the draft takes a prompt in."""

    @property
    def name(self) -> str:
        return f"draft_{super().name}"


@dataclass(frozen=True, order=True)
class RoundBucket(Bucket):
    """A fused round's graph: the draft grows a tree of a fixed shape, and the target verifies it; both read `slots` of their caches.

    branches: children of a node, level by level (inference.branches.Branches).
    """

    branches: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.nodes, self.picks, self.levels) != (
            self.shape.nodes,
            self.shape.nodes,
            self.shape.depth + 1,
        ):
            raise BadArtifact(
                f"a round's target chooses at every node of a {self.shape}: got {self}"
            )

    @classmethod
    def of(cls, shape: Branches, rows: int, slots: int, junk: int, *, sampled: bool) -> RoundBucket:
        """The bucket for trees of this shape."""
        return cls(
            rows, shape.nodes, slots, shape.nodes, shape.depth + 1, sampled, junk, shape.branches
        )

    @property
    def shape(self) -> Branches:
        return Branches(self.branches)

    @property
    def name(self) -> str:
        branches = "x".join(map(str, self.branches))
        return (
            f"round_b{self.rows}_{branches}_s{self.slots}_{'sampled' if self.sampled else 'greedy'}"
        )


@dataclass(frozen=True)
class FusedPart:
    """The draft beside a target, where an artefact has one: both models run in one graph.

    model, fingerprint, config: of the draft, as the manifest has them of the target.  prefill: graphs in which the draft takes
    prompts in.  rounds: draft, verification and acceptance in one call, all of one shape.
    """

    model: str
    fingerprint: str
    config: Mapping[str, Any]
    prefill: tuple[DraftBucket, ...]
    rounds: tuple[RoundBucket, ...]

    def __post_init__(self) -> None:
        if (
            not (self.prefill and self.rounds)
            or len({bucket.branches for bucket in self.rounds}) > 1
        ):
            raise BadArtifact(
                "a fused artefact needs graphs for the draft's prompts, and rounds of one shape"
            )

    @property
    def shape(self) -> Branches:
        """Of every round's tree."""
        return self.rounds[0].shape


@dataclass(frozen=True)
class Manifest:
    """Everything that must hold for an artefact to be loaded.

    target: cpu, trn1, inf2 or trn2.  config: the checkpoint's config.json.  capacity: usable slots a row; the cache has one
    more.  graphs: bucket name -> bucket.  files: path in the artefact -> SHA-256.  versions: package or SDK -> version.
    host: what the code needs of the machine (such as cpu_capability).  command: what made it.  fused: the draft beside it, if any.
    """

    target: str
    model: str
    model_fingerprint: str
    tokenizer_fingerprint: str
    vocabulary: int
    stop_ids: tuple[int, ...]
    config: Mapping[str, Any]
    dtype: str
    tensor_parallel: int
    rows: int
    capacity: int
    sequence_length: int
    max_tree_nodes: int
    buckets: tuple[Bucket, ...]
    compiler_flags: Mapping[str, str]
    versions: Mapping[str, str]
    host: Mapping[str, str]
    files: Mapping[str, str]
    command: str
    created: str
    schema: int = SCHEMA
    fused: FusedPart | None = None

    @property
    def graphs(self) -> tuple[Bucket, ...]:
        """All that was compiled: the target's, then the draft's, then those of both."""
        return (
            self.buckets
            if self.fused is None
            else (*self.buckets, *self.fused.prefill, *self.fused.rounds)
        )

    def digest(self) -> str:
        """SHA-256 of the manifest's canonical form, which covers every file of the artefact."""
        return hashlib.sha256(json.dumps(_plain(self), sort_keys=True).encode()).hexdigest()


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Written last and at once, so that a directory with a manifest is complete."""
    partial = directory / f".{MANIFEST}.partial"
    partial.write_text(
        json.dumps(_plain(manifest), indent=1, sort_keys=True) + "\n", encoding="utf-8"
    )
    partial.replace(directory / MANIFEST)


def read_manifest(directory: Path) -> Manifest:
    """Raises BadArtifact when there is none, or it is of another schema, or not one at all."""
    path = directory / MANIFEST
    if not path.is_file():
        raise BadArtifact(
            f"{directory} is not an artefact, or was not finished: it has no {MANIFEST}; build it with python -m compile"
        )
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadArtifact(f"{path} is not JSON: {error}") from error
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        found = raw.get("schema") if isinstance(raw, dict) else None
        raise BadArtifact(
            f"{path} has schema {found}, this Outrider reads {SCHEMA}: build it again with python -m compile"
        )
    known = {entry.name for entry in fields(Manifest)}
    raw.setdefault("fused", None)
    if raw.keys() != known:
        raise BadArtifact(f"{path}: fields {sorted(raw.keys() ^ known)} are missing or unknown")
    try:
        buckets = tuple(Bucket(**bucket) for bucket in raw["buckets"])
        return Manifest(
            **{
                **raw,
                "buckets": buckets,
                "stop_ids": tuple(raw["stop_ids"]),
                "fused": _fused(raw["fused"]),
            }
        )
    except (TypeError, KeyError) as error:
        raise BadArtifact(f"{path}: {error}") from error


def check_files(directory: Path, manifest: Manifest) -> None:
    """Every file is there and is what was built; raises BadArtifact naming the first that is not."""
    for name, expected in sorted(manifest.files.items()):
        path = directory / name
        if not path.is_file():
            raise BadArtifact(f"{path} is missing: copy or build the artefact again")
        if hash_file(path) != expected:
            raise BadArtifact(
                f"{path} is not the file that was built (its SHA-256 differs): copy or build the artefact again"
            )


def hash_files(directory: Path, names: Iterable[str]) -> dict[str, str]:
    """Path in the artefact -> SHA-256."""
    return {name: hash_file(directory / name) for name in sorted(names)}


def hash_file(path: Path) -> str:
    """SHA-256, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _fused(raw: Mapping[str, Any] | None) -> FusedPart | None:
    if raw is None:
        return None
    prefill = tuple(DraftBucket(**bucket) for bucket in raw["prefill"])
    rounds = tuple(
        RoundBucket(**{**bucket, "branches": tuple(bucket["branches"])}) for bucket in raw["rounds"]
    )
    return FusedPart(**{**raw, "prefill": prefill, "rounds": rounds})


def _plain(manifest: Manifest) -> dict[str, Any]:
    """A target without a draft beside it has no field for one, as before there were any: its digest stays what it was."""
    plain = {
        **asdict(manifest),
        "buckets": [asdict(bucket) for bucket in manifest.buckets],
        "stop_ids": list(manifest.stop_ids),
    }
    if manifest.fused is None:
        del plain["fused"]
    return plain
