"""Artefacts whose builder writes small files instead of compiling."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compile.build.build import (
    Builder,
    MadeWith,
    Source,
    build_artifact,
    make_manifest,
    read_source,
)
from compile.compile_options import CompileOptions
from compile.plan.buckets import GraphSizes, graphs_of
from compile.request import find_checkpoint, make_request
from compile.spec import CompileSpec
from inference.files.artifact import Bucket, Manifest
from tests.support.models import TINY

SIZES = GraphSizes(2, 16, 8, 2, 120, trees=(2, 8), sampling="greedy")


@dataclass
class FakeBuilder:
    """Writes each bucket's name into its file; `broken` fails at that bucket."""

    workers: int = 1
    broken: str = ""
    version: str = "1"
    asked: list[str] = field(default_factory=list)

    def prepare(self, directory: Path) -> list[str]:
        self.asked.append("weights")
        return [_file(directory, "weights/all.bin", b"weights")]

    def build(self, bucket: Bucket, directory: Path) -> list[str]:
        self.asked.append(bucket.name)
        if bucket.name == self.broken:
            raise KeyboardInterrupt
        return [_file(directory, f"graphs/{bucket.name}.bin", bucket.name.encode())]

    def finish(self, directory: Path, buckets: Sequence[Bucket]) -> list[str]:
        self.asked.append("joint")
        return [_file(directory, "graphs/joint.bin", str(len(buckets)).encode())]

    def made_with(self) -> MadeWith:
        return MadeWith({"fake": self.version}, {"machine": "any"}, {})


def small_spec(**changes: Any) -> CompileSpec:
    """A spec of few graphs: greedy, one size of cache."""
    return CompileSpec(
        **{
            "model": "tiny",
            "target": "cpu",
            "vocabulary": 61,
            "buckets": graphs_of(SIZES),
            "rows": 2,
            "sequence_length": 120,
            "max_tree_nodes": 8,
            **changes,
        }
    )


def checkpoint(directory: Path) -> Source:
    """A source whose tokenizer is any file."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(TINY))
    (directory / "tokenizer.json").write_text("{}")
    return Source(directory, "model", "tokenizer", TINY, (2,))


def build(
    directory: Path,
    builder: Builder | None = None,
    spec: CompileSpec | None = None,
    say: Callable[[str], None] = lambda line: None,
    live: bool = False,
) -> Manifest:
    """An artefact in `directory`, from a checkpoint beside it."""
    source = checkpoint(directory.parent / "checkpoint")
    return build_artifact(
        spec or small_spec(),
        source,
        builder or FakeBuilder(),
        directory,
        command="a test",
        say=say,
        live=live,
    )


TRN1 = CompileOptions(target="trn1", tensor_parallel=2, dry_run=True)


def trn1_manifest() -> Manifest:
    """The embedded target's for two cores of trn1, which was never built."""
    found = find_checkpoint(TRN1)
    spec, source = make_request(TRN1, found).spec, read_source(found.directory)
    return planned_manifest(spec, source, FakeBuilder())


def planned_manifest(spec: CompileSpec, source: Source, builder: Builder) -> Manifest:
    """The manifest before the build: complete except for files."""
    return make_manifest(spec, source, builder.made_with(), {}, "")


def _file(directory: Path, name: str, content: bytes) -> str:
    (directory / name).write_bytes(content)
    return name
