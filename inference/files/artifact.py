"""A compiled target on disk: its manifest, its files, and the check that the files are unchanged.

`compile` writes artefacts and backends load them; both use this module. An artefact is a directory
with manifest.json, the graphs, the weights and the tokenizer's files. Graphs are executable code,
so each file's hash is checked before the file is loaded.
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
from inference.files.json_file import LARGEST, read_json, shown
from inference.files.records import Count, Record, Size, Text, read_record
from inference.files.writing import write_whole
from inference.sampling import MOST_BIASES
from inference.tree.tree_shape import Branches

NATIVE = ("trn2", "trn3")
"""Targets of native PyTorch on Neuron. trn1 and inf2 are PyTorch/XLA's."""

SCHEMA = 3
MANIFEST = "manifest.json"
MOST_NODES = 1 << 16
"""Maximum nodes of a tree in a manifest; compiled trees are far smaller."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


_LONGEST_PART, _LONGEST_NAME = 255, 1024  # bytes that every file system supports


def _checked_files(files: Mapping[str, str]) -> Mapping[str, str]:
    """The files, unchanged. Raises BadArtifact for a path or a hash that is not allowed.

    A path is relative, normalised and inside the artefact's directory. It is not the manifest, and
    no path lies below another one.
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
            and max(map(len, map(str.encode, path.parts)), default=0) <= _LONGEST_PART
            and len(name.encode()) <= _LONGEST_NAME
        )
        own = {".", MANIFEST} & {part.casefold() for part in name.split("/")[:1]}
        if own or not plain or name in above or not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise BadArtifact(f"it lists {shown(name)}, which is not a file of an artefact")
    return files


def _checked_branches(branches: tuple[int, ...]) -> tuple[int, ...]:
    if math.prod(branches) > MOST_NODES:
        raise BadArtifact(f"the maximum is {MOST_NODES} nodes in a tree")
    return branches


def _checked_features(layers: tuple[int, ...]) -> tuple[int, ...]:
    if list(layers) != sorted(set(layers)):
        raise BadArtifact(f"features are of ascending layers: got {layers}")
    return layers


Id = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]
Texts = Mapping[Text, Text]
Files = Annotated[Texts, AfterValidator(_checked_files)]
"""Path in the artefact -> SHA-256."""

Level = Annotated[int, Field(ge=1, le=MOST_NODES)]
FeatureLayers = Annotated[tuple[Size, ...], AfterValidator(_checked_features)]
Levels = Annotated[
    tuple[Level, ...], Field(max_length=MOST_NODES), AfterValidator(_checked_branches)
]


@dataclass(frozen=True, order=True)
class Bucket(Record):
    """The fixed shapes of one graph."""

    rows: Size  # sequences in a call
    nodes: Size  # new nodes a row
    slots: Size  # cache slots that the graph reads in each row
    picks: Size  # nodes a row at which a token is chosen; 1 for prompts
    levels: Size  # distinct positions that need noise: the deepest tree's depth plus one
    sampled: bool  # the graph has the sampling inputs; otherwise it is greedy
    junk: Size  # the slot that padding is written to, the last of every row's cache
    # 32-bit words of the graph's masks of allowed ids; 0: it has no mask
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
        """Maximum ids with a changed logit of a row of a masked graph at its first picked node:
        those of all tokens before it, and all with a bias.
        """
        return self.slots + self.nodes + MOST_BIASES

    @property
    def everywhere(self) -> bool:
        """Whether a token is chosen at every node, so that the graph needs no indices."""
        return self.picks == self.nodes

    @property
    def name(self) -> str:
        """The name of the bucket's files and graph."""
        kind = "masked" if self.masked else "sampled" if self.sampled else "greedy"
        call = "prefill" if self.picks == 1 < self.nodes else "verify"
        return f"{call}_b{self.rows}_t{self.nodes}_s{self.slots}_{kind}"


@dataclass(frozen=True, order=True)
class DraftBucket(Bucket):
    """The fixed shapes of a graph that prefills a prompt in the draft beside a target."""

    @property
    def name(self) -> str:
        return f"draft_{super().name}"


@dataclass(frozen=True, order=True)
class RoundBucket(Bucket):
    """The fixed shapes of a fused round's graph.

    In one call the draft grows a tree of a fixed shape and the target verifies it. Each model reads
    `slots` slots of its own cache.
    """

    branches: Levels  # children of a node, level by level (inference.tree.tree_shape.Branches)

    def __post_init__(self) -> None:
        super().__post_init__()
        nodes, levels = self.shape.nodes, self.shape.depth + 1
        if (self.nodes, self.picks, self.levels) != (nodes, nodes, levels):
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
        branches, kind = "x".join(map(str, self.branches)), "sampled" if self.sampled else "greedy"
        return f"round_b{self.rows}_{branches}_s{self.slots}_{kind}"


@dataclass(frozen=True)
class FusedPart(Record):
    """The draft beside a target, in an artefact whose graphs run both models in one call."""

    model: Text  # the draft's name
    fingerprint: Text  # the draft's
    config: Mapping[str, Any]  # the draft checkpoint's config.json
    prefill: tuple[DraftBucket, ...]  # graphs that prefill prompts in the draft
    rounds: tuple[RoundBucket, ...]  # graphs that draft, verify and accept; one tree shape for all

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
    """A target for one kind of device, as a spec requests it and a manifest records it."""

    model: Text  # its name
    target: Text  # cpu, trn1, inf2, trn2 or trn3
    vocabulary: Count  # ids of the tokenizer
    buckets: tuple[Bucket, ...]  # the target's own graphs
    rows: Count  # sequences in the cache
    sequence_length: Count  # prompt and output together
    max_tree_nodes: Count  # nodes of the largest tree, its root included
    dtype: Text
    tensor_parallel: Count  # ranks that share the model
    compiler_flags: Texts  # flag -> value ("" for none)
    fused: FusedPart | None = field(default=None, kw_only=True)  # the draft in its graphs
    # layers whose inputs the graphs return, ascending
    features: FeatureLayers = field(default=(), kw_only=True)

    @property
    def graphs(self) -> tuple[Bucket, ...]:
        """Buckets of all compiled graphs: the target's, the draft's, then the fused rounds'."""
        beside = () if self.fused is None else (*self.fused.prefill, *self.fused.rounds)
        return (*self.buckets, *beside)


@dataclass(frozen=True)
class Manifest(CompiledTarget):
    """Everything that must match for an artefact to be loaded. Its compiler flags include those
    that a builder always sets.
    """

    model_fingerprint: Text
    tokenizer_fingerprint: Text
    stop_ids: tuple[Id, ...]
    config: Mapping[str, Any]  # the checkpoint's config.json
    capacity: Count  # usable slots a row; the cache has one more
    versions: Texts  # package or SDK -> version
    host: Texts  # requirements on the machine, such as cpu_capability
    files: Files
    command: Text  # the command line that built the artefact
    created: Text
    schema: int = SCHEMA

    def digest(self) -> str:
        """SHA-256 of the manifest's canonical form, which covers every file of the artefact."""
        return hashlib.sha256(json.dumps(_plain(self), sort_keys=True).encode()).hexdigest()


def features_of(layers: Sequence[int]) -> str:
    """A description of the features that graphs return, or a head reads."""
    return f"inputs of layers {', '.join(map(str, layers))}" if layers else "no features"


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest, as the last file of the artefact and atomically. Raises OSError.

    A directory with a manifest is therefore complete.
    """
    write_whole(directory / MANIFEST, json.dumps(_plain(manifest), indent=1, sort_keys=True) + "\n")


def read_manifest(directory: Path) -> Manifest:
    """The manifest of the artefact in `directory`.

    Raises BadArtifact when the manifest is missing, has another schema or no schema, or names files
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
    """The manifest in a file of any name. Raises BadArtifact when it cannot be read."""
    raw = read_json(path, BadArtifact)
    found = raw.field("schema").value
    if found != SCHEMA:
        remedy = f"this Outrider reads {SCHEMA}: build it again with outrider compile"
        raise BadArtifact(f"{path} has schema {shown(found)}, {remedy}")
    return read_record(raw, Manifest)


def check_files(directory: Path, manifest: Manifest) -> None:
    """Check that every file exists and has the hash in the manifest.

    Raises BadArtifact that names the first other file.
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
    """SHA-256 of each file, by its path in the artefact. Raises OSError."""
    return {name: hash_file(directory / name) for name in sorted(names)}


def hash_file(path: Path) -> str:
    """SHA-256 of a file in hexadecimal; the file is read in blocks of 1 MiB. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _plain(manifest: Manifest) -> dict[str, Any]:
    """The manifest in JSON types.

    `fused` is omitted where there is no draft, and `features` where the graphs return none. So the
    digest of any other target equals the digest that it had before these fields existed.
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
