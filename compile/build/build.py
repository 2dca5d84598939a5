"""Builds an artefact directory from a spec, stage by stage, with a Builder. A finished stage is not
built again.

Stages are the weights, each graph, and what needs all graphs. `.build/` in the artefact's directory
records the inputs of each stage and the hashes of its files. The manifest is written last, after
the rounds of a draft in the graphs have been checked. It is removed before any of its files is
changed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import Progress, TaskID, TimeElapsedColumn

from compile.round_check import check_rounds
from compile.spec import CompileSpec
from inference.errors import BadArtifact, InvalidRequest
from inference.files.artifact import (
    MANIFEST,
    TOKENIZER_FILES,
    Bucket,
    Manifest,
    hash_files,
    read_manifest,
    write_manifest,
)
from inference.files.json_file import Record, Text, read_json, read_record
from inference.files.writing import locked, write_whole
from inference.model.checkpoints.checkpoint import DTYPES, load_decoder
from inference.model.checkpoints.config import read_config_for_graphs, read_raw_config
from inference.model.checkpoints.weight_files import fingerprint
from inference.model.decoder import Decoder
from inference.text.tokenizer import Tokenizer
from inference.text.tokenizer_settings import TEMPLATES

Say = Callable[[str], None]
STATE = ".build"
WEIGHTS, JOINT = "weights", "joint"
"""The stages other than graphs: files for all graphs, and what is built from all graphs."""
_TALKATIVE = ("torch", "absl", "jax", "Neuron", "neuronx_distributed", "libneuronxla")
_COPIED = ("config.json", "generation_config.json", *TOKENIZER_FILES)


@dataclass(frozen=True)
class MadeWith:
    """The compiler of an artefact and its machine, recorded before the build, since compilers may
    change their settings later.
    """

    versions: Mapping[str, str]  # packages that determine the files -> version
    host: Mapping[str, str]  # what the files require of the machine that loads them
    flags: Mapping[str, str]  # of the compiler, including the spec's


class Builder(Protocol):
    """Builds the files of an artefact directory from buckets. Returned paths are relative to it.

    Weights are written to weights/, graphs to graphs/, named by bucket.name. A method is not called
    while its earlier files are unchanged. If it is called again, it replaces them.
    """

    workers: int  # number of graphs to build at once

    def prepare(self, directory: Path) -> list[str]:
        """Write what all graphs share (the weights), once, before the first graph."""
        ...

    def build(self, bucket: Bucket, directory: Path) -> list[str]:
        """Build one of spec.graphs. Called from `workers` threads."""
        ...

    def finish(self, directory: Path, buckets: Sequence[Bucket]) -> list[str]:
        """Build what needs all graphs, if anything."""
        ...

    def made_with(self) -> MadeWith:
        """Return everything besides the spec that determines the files."""
        ...


@dataclass(frozen=True)
class Source:
    """The checkpoint to build from."""

    directory: Path
    model_fingerprint: str
    tokenizer_fingerprint: str
    config: Mapping[str, Any]  # config.json
    stop_ids: tuple[int, ...]


def read_source(directory: Path) -> Source:
    """Read a Hugging Face directory. Raises UnsupportedModel for a model that is not supported."""
    config, tokenizer = read_config_for_graphs(directory), Tokenizer(directory)
    return Source(
        directory,
        fingerprint(directory),
        tokenizer.fingerprint(),
        read_raw_config(directory),
        tuple(sorted(config.stop_ids | tokenizer.end_ids)),
    )


def load_whole(spec: CompileSpec, checkpoint: Path) -> Decoder:
    """Load a checkpoint's whole decoder on the CPU, in the precision of the spec."""
    return load_decoder(
        checkpoint,
        positions=spec.sequence_length,
        vocabulary=spec.vocabulary,
        dtype=DTYPES[spec.dtype],
        device=torch.device("cpu"),
    )


def build_artifact(
    spec: CompileSpec,
    source: Source,
    builder: Builder,
    directory: Path,
    *,
    command: str,
    say: Say,
    live: bool = False,
) -> Manifest:
    """Build what is missing. A complete artefact stays unchanged. Raises InvalidRequest with the
    process id while another process builds in the directory.

    say: prints a line when a stage starts and when it has finished
    live: whether to show a bar on the terminal instead of the lines of starts
    """
    _make_room(directory)
    tools = builder.made_with()
    columns, console = (*Progress.get_default_columns(), TimeElapsedColumn()), Console(stderr=True)
    bar = Progress(*columns, console=console, transient=True, disable=not live)
    if live:
        say = partial(console.print, highlight=False, markup=False)
    names = [WEIGHTS, *(bucket.name for bucket in spec.graphs), JOINT]
    labels = {name: f"[{index}/{len(names)}] {name}" for index, name in enumerate(names, 1)}
    task = bar.add_task("planning", total=len(names))
    stages = Stages(directory, _base_key(spec, source, tools), labels, say, bar, task)
    present = [name for name in _COPIED if (source.directory / name).is_file()]
    templates = (source.directory / TEMPLATES).glob("*.jinja")
    present += sorted(f"{TEMPLATES}/{path.name}" for path in templates)

    def prepare() -> list[str]:
        for name in present:
            (directory / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source.directory / name, directory / name)
        return [*present, *builder.prepare(directory)]

    with bar, locked(directory):
        files = stages.run(WEIGHTS, {"copied": hash_files(source.directory, present)}, prepare)
        for graph_files in _build_graphs(spec.graphs, builder, stages):
            files |= graph_files
        files |= stages.run(JOINT, {"files": files}, lambda: builder.finish(directory, spec.graphs))
        return _finish(directory, make_manifest(spec, source, tools, files, command), say)


def _build_graphs(
    buckets: Sequence[Bucket], builder: Builder, stages: Stages
) -> list[dict[str, str]]:
    """Return the files of every graph. After a failure, start no further graph."""

    def run(bucket: Bucket) -> dict[str, str]:
        return stages.run(
            bucket.name, asdict(bucket), lambda: builder.build(bucket, stages.directory)
        )

    if builder.workers == 1:
        return [run(bucket) for bucket in buckets]
    with ThreadPoolExecutor(builder.workers) as pool:
        running = [pool.submit(run, bucket) for bucket in buckets]
        try:
            return [result.result() for result in running]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@dataclass(frozen=True)
class Stage(Record):
    """The record of a finished stage, stored in the artefact's directory."""

    key: Text  # hash of the stage's inputs
    files: Mapping[Text, Text]  # path -> SHA-256


@dataclass(frozen=True)
class Stages:
    """The stages of one build. Several threads may run stages at the same time."""

    directory: Path
    base: str  # hash of the inputs of all stages
    labels: Mapping[str, str]  # of all stages, by name
    say: Say
    bar: Progress
    task: TaskID

    def run(
        self, name: str, made_from: Mapping[str, Any], make: Callable[[], Iterable[str]]
    ) -> dict[str, str]:
        """Run the stage if needed, and return its files: path -> SHA-256."""
        key = hash_of({"base": self.base, **made_from})
        path = self.directory / STATE / f"{name}.json"
        files = _finished(self.directory, path, key)
        if files is not None:
            return self._end(name, "already built", files)
        self.bar.update(self.task, description=name)
        if self.bar.disable:
            self.say(f"{self.labels[name]} ...")
        if path.is_file() or name == WEIGHTS:  # the manifest does not cover a new graph
            (self.directory / MANIFEST).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        start = time.perf_counter()
        files = _hash_made(self.directory, name, make())
        seconds = time.perf_counter() - start
        write_whole(path, json.dumps(asdict(Stage(key, files))) + "\n")
        size = sum((self.directory / file).stat().st_size for file in files)
        return self._end(name, f"{seconds:.1f} s, {size / 1e6:.2f} MB", files)

    def _end(self, name: str, result: str, files: dict[str, str]) -> dict[str, str]:
        self.say(f"{self.labels[name]}: {result}")
        self.bar.advance(self.task)
        return files


def hash_of(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a value's JSON, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _finished(directory: Path, path: Path, key: str) -> dict[str, str] | None:
    """Return the files of a finished stage with the same inputs and unchanged files; None if the
    stage has to be run.
    """
    try:
        stage = read_record(read_json(path, BadArtifact), Stage)
        unchanged = stage.key == key and hash_files(directory, stage.files) == stage.files
    except (BadArtifact, OSError):
        return None
    return dict(stage.files) if unchanged else None


def _hash_made(directory: Path, stage: str, names: Iterable[str]) -> dict[str, str]:
    names = list(names)
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise BadArtifact(f"{stage}: the builder named {missing[0]}, which it did not write")
    return hash_files(directory, names)


def _make_room(directory: Path) -> None:
    try:
        for name in (STATE, "graphs", "weights"):
            (directory / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(f"--out {directory} cannot be written: {error.strerror}") from error


def _base_key(spec: CompileSpec, source: Source, tools: MadeWith) -> str:
    """Return the hash of the inputs that all stages share. It does not include the list of graphs,
    so that a graph can be added.
    """
    settings = {
        name: value
        for name, value in asdict(spec).items()
        if name not in ("buckets", "model", "fused")
    }
    if spec.fused is not None:
        settings["draft"] = spec.fused.fingerprint
    return hash_of(
        {
            "spec": settings,
            "model": source.model_fingerprint,
            "tokenizer": source.tokenizer_fingerprint,
            **asdict(tools),
        }
    )


def make_manifest(
    spec: CompileSpec, source: Source, tools: MadeWith, files: Mapping[str, str], command: str
) -> Manifest:
    """Return the manifest of a build. files: path -> SHA-256; command: used for the build"""
    return Manifest(
        **vars(spec) | {"compiler_flags": tools.flags},
        model_fingerprint=source.model_fingerprint,
        tokenizer_fingerprint=source.tokenizer_fingerprint,
        stop_ids=source.stop_ids,
        config=source.config,
        capacity=spec.capacity,
        versions=tools.versions,
        host=tools.host,
        files=dict(files),
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _finish(directory: Path, manifest: Manifest, say: Say) -> Manifest:
    """Check the rounds and write the manifest. An identical existing one keeps its date and
    command, so that its digest does not change.
    """
    if (directory / MANIFEST).is_file():
        try:
            present = read_manifest(directory)
        except BadArtifact:
            present = None
        ignored = dict.fromkeys(("created", "command"))
        if present is not None and asdict(present) | ignored == asdict(manifest) | ignored:
            return present
    if manifest.fused is not None:
        check_rounds(directory, manifest, say)
    write_manifest(directory, manifest)
    return manifest


def quiet_libraries() -> None:
    """Hide warnings, and log messages below errors, of this process and those it starts, to keep
    the output of libraries out of the build's.
    """
    warnings.simplefilter("ignore")
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("GLOG_minloglevel", "2")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)
