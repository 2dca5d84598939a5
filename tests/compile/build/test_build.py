"""Building an artefact: whole, resumable, never half there; what it prints, and its processes."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compile import builders
from compile.build import build as building
from compile.build.build import MadeWith, quiet_libraries, read_source
from compile.build.cpu import InProcesses
from compile.plan.buckets import first_graphs
from compile.spec import CompileSpec
from inference.errors import BadArtifact, UnsupportedModel
from inference.files.artifact import Bucket, check_files, read_manifest
from tests.support.artifacts import SIZES, FakeBuilder, build, small_spec
from tests.support.commands import Run
from tests.support.refusals import assert_refused
from tests.support.repository import ROOT

NAMES = [bucket.name for bucket in small_spec().buckets]
EVERYTHING = ["weights", *NAMES, "joint"]


def test_a_built_directory_is_an_artefact_of_what_was_asked_and_is_left_as_it_is(
    tmp_path: Path,
) -> None:
    builder, said = FakeBuilder(), list[str]()
    manifest = build(tmp_path / "out", builder, say=said.append)
    assert builder.asked == EVERYTHING
    assert read_manifest(tmp_path / "out") == manifest
    check_files(tmp_path / "out", manifest)
    graphs = {f"graphs/{name}.bin" for name in [*NAMES, "joint"]}
    assert manifest.files.keys() == {"config.json", "tokenizer.json", "weights/all.bin"} | graphs
    assert (manifest.capacity, manifest.rows, manifest.stop_ids) == (128, 2, (2,))
    assert said[2] == f"[2/{len(EVERYTHING)}] {NAMES[0]} ..."
    assert said[3].startswith(f"[2/{len(EVERYTHING)}] {NAMES[0]}: 0.")
    assert len(said) == 2 * len(EVERYTHING)
    again, said = FakeBuilder(), list[str]()
    assert build(tmp_path / "out", again, say=said.append).digest() == manifest.digest()
    assert again.asked == []
    assert said == [
        f"[{index}/{len(EVERYTHING)}] {name}: already built"
        for index, name in enumerate(EVERYTHING, 1)
    ]


def test_a_build_that_was_broken_off_has_no_manifest_and_goes_on_where_it_stopped(
    tmp_path: Path,
) -> None:
    build(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "out", FakeBuilder(version="2", broken=NAMES[2]))
    assert_refused(lambda: read_manifest(tmp_path / "out"), ["not finished"], BadArtifact)
    builder = FakeBuilder(version="2")
    manifest = build(tmp_path / "out", builder)
    assert builder.asked == [*NAMES[2:], "joint"]
    assert manifest.files == build(tmp_path / "fresh").files


def test_only_what_changed_is_built_again(tmp_path: Path) -> None:
    build(tmp_path / "out")
    (tmp_path / "out" / "graphs" / f"{NAMES[1]}.bin").write_bytes(b"changed")
    (tmp_path / "out" / "weights" / "all.bin").unlink()
    builder = FakeBuilder()
    check_files(tmp_path / "out", build(tmp_path / "out", builder))
    assert builder.asked == ["weights", NAMES[1]]
    (tmp_path / "checkpoint" / "generation_config.json").write_text('{"eos_token_id": 5}')
    builder = FakeBuilder()
    assert "generation_config.json" in build(tmp_path / "out", builder).files
    assert builder.asked == ["weights", "joint"]


def test_the_first_graphs_serve_while_the_others_are_added_and_are_not_built_again(
    tmp_path: Path,
) -> None:
    whole, first, out = small_spec(), FakeBuilder(), tmp_path / "out"
    quick = first_graphs(whole, SIZES)
    served = build(out, first, quick)
    assert first.asked == ["weights", *(bucket.name for bucket in quick.graphs), "joint"]
    lacking = [bucket.name for bucket in whole.graphs if bucket not in quick.graphs]
    broken, rest = FakeBuilder(broken=lacking[-1]), FakeBuilder()
    with pytest.raises(KeyboardInterrupt):
        build(out, broken, whole)
    assert broken.asked == lacking
    assert read_manifest(out) == served
    check_files(out, served)
    assert build(out, rest, whole).files == build(tmp_path / "fresh").files
    assert rest.asked == [lacking[-1], "joint"]


@pytest.mark.parametrize(
    ("builder", "spec"),
    [
        (FakeBuilder(version="2"), small_spec()),
        (FakeBuilder(), small_spec(dtype="bfloat16")),
        (FakeBuilder(), small_spec(compiler_flags={"-O2": ""})),
        (FakeBuilder(), small_spec(features=(0,))),
    ],
)
def test_another_compiler_precision_flag_or_list_of_features_builds_everything_again(
    tmp_path: Path, builder: FakeBuilder, spec: CompileSpec
) -> None:
    build(tmp_path / "out")
    build(tmp_path / "out", builder, spec)
    assert builder.asked == EVERYTHING


def test_a_compiler_that_changes_its_flags_under_way_does_not_change_the_artefact(
    tmp_path: Path,
) -> None:
    class Restless(FakeBuilder):
        def made_with(self) -> MadeWith:
            flags = {"graphs so far": str(len(self.asked))}
            return replace(super().made_with(), flags=flags)

    first, builder = build(tmp_path / "out", Restless()), Restless()
    assert build(tmp_path / "out", builder).digest() == first.digest()
    assert builder.asked == []


def test_what_cannot_be_built_is_refused(tmp_path: Path) -> None:
    class Forgetful(FakeBuilder):
        def finish(self, directory: Path, buckets: Any) -> list[str]:
            return ["graphs/none.bin"]

    forgetting = partial(build, tmp_path / "out", Forgetful())
    assert_refused(forgetting, ["joint", "graphs/none.bin"], BadArtifact)
    (tmp_path / "file").write_text("a file")
    assert_refused(lambda: build(tmp_path / "file"), [str(tmp_path / "file")])
    (tmp_path / "config.json").write_text('{"model_type": "gpt_oss"}')
    shown = ["'gpt_oss'", "supported are llama", "--backend transformers", "vLLM-Neuron"]
    assert_refused(lambda: read_source(tmp_path), shown, UnsupportedModel)


def test_a_second_build_into_a_directory_is_refused_until_the_first_was_killed_or_failed(
    tmp_path: Path,
) -> None:
    manifest = build(tmp_path / "out")
    code = (
        "import time; from pathlib import Path; from inference.files.writing import locked\n"
        f"with locked(Path({str(tmp_path / 'out')!r})): "
        "print('held', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code]
    second = FakeBuilder(version="2")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        told = [str(tmp_path / "out"), f"by process {first.pid} on "]
        assert_refused(lambda: build(tmp_path / "out", second), told)
        check_files(tmp_path / "out", manifest)
        assert second.asked == []
        first.kill()
        first.wait()
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "out", FakeBuilder(version="2", broken=NAMES[0]))
    build(tmp_path / "out", second)


def test_the_command_line_builds_pushes_and_pulls(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Bucket] = []

    def fake(spec: CompileSpec, *_: Any, **__: Any) -> FakeBuilder:
        built.extend(spec.buckets)
        return FakeBuilder()

    monkeypatch.setattr(builders, "builder_of", fake)
    monkeypatch.setattr(building, "quiet_libraries", lambda: None)  # it stays so
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out, store, taken = (str(tmp_path / name) for name in ("out", "store", "taken"))
    sizes = ["--rows", "1", "--tree_sizes", "4", "--sampling", "greedy"]
    flags = ["--target", "cpu", "--out", out, *sizes, "--push", store]
    shown = run("compile", *flags)
    manifest = read_manifest(Path(out))
    assert [bucket.name for bucket in manifest.buckets] == [bucket.name for bucket in built]
    assert manifest.command == f"outrider compile {' '.join(flags)}"
    assert manifest.stop_ids == (1,)
    assert f"--digest {manifest.digest()}" in shown.out
    assert "[1/" in shown.err
    pull = ["compile", "--pull", store, "--digest"]
    assert run(*pull, manifest.digest(), "--out", taken).code == 0
    assert read_manifest(Path(taken)) == manifest
    run(*pull, "0" * 64, "--out", tmp_path / "other").assert_failed("manifests/")


def test_the_live_progress_leaves_a_line_for_each_stage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build(tmp_path / "out", live=True)
    shown = capsys.readouterr().err
    for index, stage in enumerate(EVERYTHING, 1):
        assert f"[{index}/{len(EVERYTHING)}] {stage}: 0.0 s" in shown


def test_quiet_libraries_still_tell_their_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    levels = {name: logging.getLogger(name).level for name in ("torch", "absl")}
    with warnings.catch_warnings(record=True) as told:
        quiet_libraries()
        warnings.warn("deprecated", FutureWarning, stacklevel=1)
    assert told == []
    assert not logging.getLogger("torch._inductor").isEnabledFor(logging.WARNING)
    assert logging.getLogger("torch._inductor").isEnabledFor(logging.ERROR)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


class Watched(FakeBuilder):
    """Writes the number of its process beside each graph."""

    def build(self, bucket: Bucket, directory: Path) -> list[str]:
        if bucket.name == self.broken:
            raise BadArtifact(f"graph {bucket.name} was not compiled")
        if self.version == "dies":
            os._exit(9)
        (directory / f"{bucket.name}.pid").write_text(str(os.getpid()))
        return super().build(bucket, directory)


def test_graphs_built_by_processes_are_those_of_one_builder(tmp_path: Path) -> None:
    manifest = build(tmp_path / "out", InProcesses(Watched, 2, quiet=True))
    check_files(tmp_path / "out", manifest)
    assert manifest.files == build(tmp_path / "other").files
    processes = {path.read_text() for path in (tmp_path / "out").glob("*.pid")}
    assert str(os.getpid()) not in processes
    assert 1 <= len(processes) <= 2


@pytest.mark.parametrize(
    ("settings", "shown"),
    [({"broken": NAMES[1]}, ["was not compiled"]), ({"version": "dies"}, ["taskset"])],
)
def test_what_goes_wrong_in_a_process_is_an_error_here(
    tmp_path: Path, settings: dict[str, str], shown: list[str]
) -> None:
    builder = InProcesses(partial(Watched, **settings), 1, quiet=True)  # type: ignore[arg-type]
    assert_refused(lambda: build(tmp_path / "out", builder), shown, BadArtifact)
