"""Artefacts: compiled targets on disk, written by `compile` and loaded by backends.

An artefact is a directory with manifest.json, graphs, weights and tokenizer files. Graphs are
executable code, so the hash of each file is checked before it is loaded.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from inference.errors import BadArtifact
from inference.files.json_file import (
    LARGEST,
    Count,
    Record,
    Size,
    Text,
    read_json,
    read_record,
    shown,
)
from inference.files.writing import write_whole
from inference.sampling import MAX_BIASES
from inference.tree.tree_shape import Branches

NATIVE = ("trn2", "trn3")
"""Neuron targets that use native PyTorch; trn1 and inf2 use PyTorch/XLA."""

SCHEMA = 3
MANIFEST = "manifest.json"
MAX_NODES = 1 << 16
"""Maximum nodes of a tree in a manifest, far above the size of compiled trees."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


_MAX_COMPONENT, _MAX_PATH = 255, 1024  # bytes that every file system supports


def _checked_files(files: Mapping[str, str]) -> Mapping[str, str]:
    """Return the files. Raises BadArtifact for an invalid path or hash.

    A valid path is relative, normalised and inside the artefact's directory. It is not the manifest
    and not below another file.
    """
    above = {str(parent) for name in files for parent in PurePosixPath(name).parents}
    for name, sha256 in files.items():
        path = PurePosixPath(name)
        plain = (
            name == str(path)
            and not path.is_absolute()
            and ".." not in path.parts
            and "\\" not in name
            and name.isprintable()
            and max(map(len, map(str.encode, path.parts)), default=0) <= _MAX_COMPONENT
            and len(name.encode()) <= _MAX_PATH
        )
        reserved = {".", MANIFEST} & {component.casefold() for component in name.split("/")[:1]}
        if reserved or not plain or name in above or not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise BadArtifact(f"it lists {shown(name)}, which is not a file of an artefact")
    return files


def _checked_branches(branches: tuple[int, ...]) -> tuple[int, ...]:
    if math.prod(branches) > MAX_NODES:
        raise BadArtifact(f"the maximum is {MAX_NODES} nodes in a tree")
    return branches


def _checked_features(layers: tuple[int, ...]) -> tuple[int, ...]:
    if list(layers) != sorted(set(layers)):
        raise BadArtifact(f"features are of ascending layers: got {layers}")
    return layers


Id = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]
Texts = Mapping[Text, Text]
Files = Annotated[Texts, AfterValidator(_checked_files)]
"""Path in the artefact -> SHA-256."""

Level = Annotated[int, Field(ge=1, le=MAX_NODES)]
FeatureLayers = Annotated[tuple[Size, ...], AfterValidator(_checked_features)]
Levels = Annotated[
    tuple[Level, ...], Field(max_length=MAX_NODES), AfterValidator(_checked_branches)
]


@dataclass(frozen=True, order=True)
class Bucket(Record):
    """The fixed shapes of a graph."""

    rows: Size  # sequences in a forward pass
    nodes: Size  # new nodes per row
    slots: Size  # cache slots that the graph reads in each row
    picks: Size  # nodes per row at which a token is chosen; 1 for prompts
    levels: Size  # distinct positions that need noise: the deepest tree's depth plus one
    sampled: bool  # the graph has sampling inputs; otherwise it is greedy
    junk: Size  # the slot that padding is written to, the last of each row's cache
    # 32-bit words of the masks of allowed ids; 0 for a graph without masks
    words: Size = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if not (self.rows >= 1 and self.nodes >= 1 and 1 <= self.slots <= self.junk + 1):
            raise BadArtifact(f"no such bucket: {self}")
        if self.picks not in (1, self.nodes) or not 1 <= self.levels <= self.nodes:
            raise BadArtifact(
                f"a bucket picks one node or all, and has no more levels than nodes: got {self}"
            )
        if self.masked and not (self.sampled and self.everywhere):
            raise BadArtifact(
                f"a graph with masks is sampled and chooses at every node: got {self}"
            )

    @property
    def masked(self) -> bool:
        """Whether the graph adjusts logits and returns log-probabilities."""
        return self.words > 0

    @property
    def changes(self) -> int:
        """Maximum ids of a row whose logits a masked graph changes: the ids of all earlier tokens
        (penalties), and ids with a bias.
        """
        return self.slots + self.nodes + MAX_BIASES

    @property
    def everywhere(self) -> bool:
        """Whether a token is chosen at every node, which makes indices unnecessary."""
        return self.picks == self.nodes

    @property
    def name(self) -> str:
        """The name of the graph and its files."""
        kind = "masked" if self.masked else "sampled" if self.sampled else "greedy"
        call = "prefill" if self.picks == 1 < self.nodes else "verify"
        return f"{call}_b{self.rows}_t{self.nodes}_s{self.slots}_{kind}"


@dataclass(frozen=True, order=True)
class DraftBucket(Bucket):
    """The fixed shapes of a graph that prefills a prompt in the draft of a fused artefact."""

    @property
    def name(self) -> str:
        return f"draft_{super().name}"


@dataclass(frozen=True, order=True)
class RoundBucket(Bucket):
    """The fixed shapes of a fused round's graph, in which the draft grows a tree of a fixed shape
    and the target verifies it. Each model reads `slots` slots of its own cache.
    """

    branches: Levels  # children of a node by level (inference.tree.tree_shape.Branches)

    def __post_init__(self) -> None:
        super().__post_init__()
        nodes, levels = self.shape.nodes, self.shape.depth + 1
        if (self.nodes, self.picks, self.levels) != (nodes, nodes, levels):
            raise BadArtifact(
                f"a round's target chooses at every node of a {self.shape}: got {self}"
            )

    @classmethod
    def of(cls, shape: Branches, rows: int, slots: int, junk: int, *, sampled: bool) -> RoundBucket:
        """Return the bucket for trees of this shape."""
        return cls(
            rows, shape.nodes, slots, shape.nodes, shape.depth + 1, sampled, junk, shape.branches
        )

    @property
    def shape(self) -> Branches:
        return Branches(self.branches)

    @property
    def name(self) -> str:
        branches, kind = "x".join(map(str, self.branches)), "sampled" if self.sampled else "greedy"
        return f"round_b{self.rows}_{branches}_s{self.slots}_{kind}"


@dataclass(frozen=True)
class FusedPart(Record):
    """The draft of a fused artefact, whose graphs run draft and target in one call."""

    model: Text  # the draft's name
    fingerprint: Text  # the draft's fingerprint
    config: Mapping[str, Any]  # the draft checkpoint's config.json
    prefill: tuple[DraftBucket, ...]  # graphs that prefill prompts in the draft
    rounds: tuple[RoundBucket, ...]  # graphs that draft, verify and accept, all of one tree shape

    def __post_init__(self) -> None:
        if not self.prefill or len({bucket.branches for bucket in self.rounds}) != 1:
            raise BadArtifact(
                "a fused artefact needs graphs for the draft's prompts, and rounds of one shape"
            )

    @property
    def shape(self) -> Branches:
        """The shape of the tree in every round."""
        return self.rounds[0].shape


@dataclass(frozen=True)
class CompiledTarget(Record):
    """A target compiled for a kind of device: requested by a spec and recorded in a manifest."""

    model: Text  # the model's name
    target: Text  # cpu, trn1, inf2, trn2 or trn3
    vocabulary: Count  # number of token ids of the tokenizer
    buckets: tuple[Bucket, ...]  # the target's own graphs
    rows: Count  # sequences in the cache
    sequence_length: Count  # prompt and output together
    max_tree_nodes: Count  # nodes of the largest tree, including its root
    dtype: Text
    tensor_parallel: Count  # ranks that share the model
    compiler_flags: Texts  # flag -> value ("" for none)
    fused: FusedPart | None = field(default=None, kw_only=True)  # a draft that is compiled in
    # layers whose inputs the graphs return as features, ascending
    features: FeatureLayers = field(default=(), kw_only=True)

    @property
    def graphs(self) -> tuple[Bucket, ...]:
        """Buckets of all compiled graphs: the target's, the draft's, then the fused rounds'."""
        beside = () if self.fused is None else (*self.fused.prefill, *self.fused.rounds)
        return (*self.buckets, *beside)


@dataclass(frozen=True)
class Manifest(CompiledTarget):
    """Everything that must match for an artefact to be loaded. The compiler flags include the flags
    that builders always set.
    """

    model_fingerprint: Text
    tokenizer_fingerprint: Text
    stop_ids: tuple[Id, ...]
    config: Mapping[str, Any]  # the checkpoint's config.json
    capacity: Count  # usable slots per row; the cache has one more
    versions: Texts  # package or SDK -> version
    host: Texts  # requirements on the machine, such as cpu_capability
    files: Files
    command: Text  # the command line that built the artefact
    created: Text
    schema: int = SCHEMA

    def digest(self) -> str:
        """SHA-256 of the manifest in canonical form, which includes the hashes of all files."""
        return hashlib.sha256(json.dumps(_plain(self), sort_keys=True).encode()).hexdigest()


def features_of(layers: Sequence[int]) -> str:
    """Describe the features of these layers, which graphs return or an EAGLE-3 head reads."""
    return f"inputs of layers {', '.join(map(str, layers))}" if layers else "no features"


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest atomically, as the last file: a directory with a manifest is complete.
    Raises OSError.
    """
    write_whole(directory / MANIFEST, json.dumps(_plain(manifest), indent=1, sort_keys=True) + "\n")


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of the artefact in `directory`.

    Raises BadArtifact if the manifest is missing, has another schema or none, or lists files
    outside the directory.
    """
    path = directory / MANIFEST
    if not path.is_file():
        raise BadArtifact(
            f"{directory} is not an artefact, or was not finished: it has no {MANIFEST}; build it "
            "with outrider compile"
        )
    return read_manifest_file(path)


def read_manifest_file(path: Path) -> Manifest:
    """Read the manifest in a file of any name. Raises BadArtifact if it cannot be read."""
    raw = read_json(path, BadArtifact)
    schema = raw.field("schema").value
    if schema != SCHEMA:
        remedy = f"this Outrider reads {SCHEMA}: build it again with outrider compile"
        raise BadArtifact(f"{path} has schema {shown(schema)}, {remedy}")
    return read_record(raw, Manifest)


def check_files(directory: Path, manifest: Manifest) -> None:
    """Check that every file exists and has the hash in the manifest.

    Raises BadArtifact with the first missing or changed file.
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
    """Return the SHA-256 of each file by its path in the artefact. Raises OSError."""
    return {name: hash_file(directory / name) for name in sorted(names)}


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(manifest: Manifest) -> dict[str, Any]:
    """Return the manifest in JSON types. Without a draft or features, these fields are omitted,
    which keeps the digests of older artefacts.
    """
    plain = {
        **asdict(manifest),
        "buckets": [asdict(bucket) for bucket in manifest.buckets],
        "stop_ids": list(manifest.stop_ids),
    }
    if manifest.fused is None:
        del plain["fused"]
    if not manifest.features:
        del plain["features"]
    return plain
