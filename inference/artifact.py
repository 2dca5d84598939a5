"""A compiled target on disk: what it is, which files it has, and whether they are what was built.

`compile` writes artefacts, backends load them; both go through here. A directory holds
manifest.json, the graphs, the weights, and the tokenizer's files. Graphs are executable code:
nothing is loaded before its hash is checked.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any

from inference.errors import BadArtifact
from inference.json_file import LARGEST, Json, read_json, shown
from inference.tree_shape import Branches
from inference.whole_file import write_whole

SCHEMA = 1
MANIFEST = "manifest.json"
MOST_NODES = 1 << 16
"""Of a tree in a manifest; far beyond any that is compiled."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


@dataclass(frozen=True, order=True)
class Bucket:
    """The fixed shapes of one graph.

    rows: sequences in a call.  nodes: new nodes a row.  slots: cache slots it reads.  picks: nodes
    chosen at (1: prefill). levels: distinct positions that noise is made for, the depth of the
    deepest tree plus one.  sampled: takes the sampling inputs; otherwise greedy.  junk: the slot
    that padding is written to, the last of every row's cache.
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
                "a bucket picks one node or all, on as many levels as it has nodes at most: got "
                f"{self}"
            )

    @property
    def name(self) -> str:
        """Names the bucket's files and graph."""
        kind = "sampled" if self.sampled else "greedy"
        call = "prefill" if self.picks == 1 < self.nodes else "verify"
        return f"{call}_b{self.rows}_t{self.nodes}_s{self.slots}_{kind}"


@dataclass(frozen=True, order=True)
class DraftBucket(Bucket):
    """A graph of the draft beside a target, in which the draft takes a prompt in."""

    @property
    def name(self) -> str:
        return f"draft_{super().name}"


@dataclass(frozen=True, order=True)
class RoundBucket(Bucket):
    """A fused round's graph: the draft grows a tree of a fixed shape, and the target verifies it;
    both read `slots` of their caches.

    branches: children of a node, level by level (inference.tree_shape.Branches).
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

    model, fingerprint, config: of the draft, as the manifest has them of the target.  prefill:
    graphs in which the draft takes prompts in.  rounds: draft, verification and acceptance in one
    call, all of one shape.
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

    target: cpu, trn1, inf2 or trn2.  config: the checkpoint's config.json.  capacity: usable slots
    a row; the cache has one more.  graphs: bucket name -> bucket.  files: path in the artefact ->
    SHA-256.  versions: package or SDK -> version. host: what the code needs of the machine (such as
    cpu_capability).  command: what made it.  fused: the draft beside it, if any.
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
    write_whole(directory / MANIFEST, json.dumps(_plain(manifest), indent=1, sort_keys=True) + "\n")


def read_manifest(directory: Path) -> Manifest:
    """What an artefact's manifest says.

    Raises BadArtifact when there is none, it is of another schema or none at all, or it names
    files outside the directory.
    """
    path = directory / MANIFEST
    if not path.is_file():
        raise BadArtifact(
            f"{directory} is not an artefact, or was not finished: it has no {MANIFEST}; build it "
            "with python -m compile"
        )
    return read_manifest_file(path)


def read_manifest_file(path: Path) -> Manifest:
    """The same from a manifest of any name."""
    raw = read_json(path, BadArtifact)
    found = raw.field("schema").value
    if found != SCHEMA:
        remedy = f"this Outrider reads {SCHEMA}: build it again with python -m compile"
        raise BadArtifact(f"{path} has schema {shown(found)}, {remedy}")
    raw.keys([entry.name for entry in fields(Manifest) if entry.name != "fused"], ["fused"])
    texts = (
        "target",
        "model",
        "model_fingerprint",
        "tokenizer_fingerprint",
        "dtype",
        "command",
        "created",
    )
    counts = (
        "vocabulary",
        "tensor_parallel",
        "rows",
        "capacity",
        "sequence_length",
        "max_tree_nodes",
    )
    maps = ("compiler_flags", "versions", "host")
    plain: dict[str, Any] = {name: raw.field(name).text() for name in texts}
    plain |= {name: raw.field(name).integer(1) for name in counts}
    plain |= {name: raw.field(name).texts() for name in maps}
    return Manifest(
        **plain,
        stop_ids=raw.field("stop_ids").each(_id),
        config=raw.field("config").dictionary(),
        buckets=raw.field("buckets").each(_bucket),
        files=_files(raw.field("files")),
        fused=_fused(raw.field("fused")),
    )


def check_files(directory: Path, manifest: Manifest) -> None:
    """Every file is there and is what was built; raises BadArtifact naming the first that is
    not.
    """
    for name, expected in sorted(manifest.files.items()):
        path = directory / name
        if not path.is_file():
            raise BadArtifact(f"{path} is missing: copy or build the artefact again")
        if hash_file(path) != expected:
            raise BadArtifact(
                f"{path} is not the file that was built (its SHA-256 differs): copy or build the "
                "artefact again"
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


def _files(raw: Json) -> dict[str, str]:
    """Path -> SHA-256. Each path lies below the artefact's directory, in its plain spelling.

    None is the manifest itself, and none lies below another.
    """
    files = raw.texts()
    above = {str(parent) for name in files for parent in PurePosixPath(name).parents}
    for name, sha256 in files.items():
        path = PurePosixPath(name)
        plain = (
            name == str(path)
            and not path.is_absolute()
            and ".." not in path.parts
            and "\\" not in name
            and name.isprintable()
        )
        own = {".", MANIFEST} & {part.casefold() for part in name.split("/")[:1]}
        if own or not plain or name in above or not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise BadArtifact(
                f"{raw.where} names {shown(name)}, which is not a file of an artefact"
            )
    return files


def _id(raw: Json) -> int:
    return raw.integer(-LARGEST)


def _sizes(raw: Json) -> dict[str, Any]:
    """What every bucket has."""
    sizes = {
        name: raw.field(name).integer()
        for name in ("rows", "nodes", "slots", "picks", "levels", "junk")
    }
    return {**sizes, "sampled": raw.field("sampled").flag()}


_SIZES = tuple(entry.name for entry in fields(Bucket))


def _bucket(raw: Json) -> Bucket:
    return raw.make(Bucket, **_sizes(raw.keys(_SIZES)))


def _draft_bucket(raw: Json) -> DraftBucket:
    return raw.make(DraftBucket, **_sizes(raw.keys(_SIZES)))


def _round_bucket(raw: Json) -> RoundBucket:
    branches = (
        raw.keys([*_SIZES, "branches"])
        .field("branches")
        .each(lambda count: count.integer(1, MOST_NODES))
    )
    if len(branches) > MOST_NODES or math.prod(branches) > MOST_NODES:
        raw.field("branches").refuse(f"a tree of {MOST_NODES} nodes at most")
    return raw.make(RoundBucket, **_sizes(raw), branches=branches)


def _fused(raw: Json) -> FusedPart | None:
    if raw.absent:
        return None
    raw.keys([entry.name for entry in fields(FusedPart)])
    config, prefill = raw.field("config").dictionary(), raw.field("prefill").each(_draft_bucket)
    rounds = raw.field("rounds").each(_round_bucket)
    return raw.make(
        FusedPart,
        raw.field("model").text(),
        raw.field("fingerprint").text(),
        config,
        prefill,
        rounds,
    )


def _plain(manifest: Manifest) -> dict[str, Any]:
    """A target without a draft beside it has no field for one, as before there were any: its
    digest stays what it was.
    """
    plain = {
        **asdict(manifest),
        "buckets": [asdict(bucket) for bucket in manifest.buckets],
        "stop_ids": list(manifest.stop_ids),
    }
    if manifest.fused is None:
        del plain["fused"]
    return plain
