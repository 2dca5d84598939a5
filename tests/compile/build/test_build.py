"""Building an artefact: whole, resumable, and never half there."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import compile.__main__ as command_line
from compile import builders
from compile.build import graph_processes
from compile.build.build import Builder, MadeWith
from compile.plan.buckets import first_graphs
from compile.spec import CompileSpec, verify_bucket
from inference.artifact import MANIFEST, Bucket, check_files, read_manifest
from inference.errors import BadArtifact, InvalidRequest
from tests.support.artifacts import LIMITS, FakeBuilder, build, small_spec
from tests.support.repository import ROOT

NAMES = [bucket.name for bucket in small_spec().buckets]
EVERYTHING = ["weights", *NAMES, "joint"]


def test_a_built_directory_is_an_artefact_of_what_was_asked(tmp_path: Path) -> None:
    builder = FakeBuilder()
    manifest = build(tmp_path / "out", builder)
    assert builder.asked == EVERYTHING
    assert read_manifest(tmp_path / "out") == manifest
    check_files(tmp_path / "out", manifest)
    graphs = {f"graphs/{name}.bin" for name in [*NAMES, "joint"]}
    assert manifest.files.keys() == {"config.json", "tokenizer.json", "weights/all.bin"} | graphs
    assert (manifest.capacity, manifest.rows, manifest.stop_ids) == (128, 2, (2,))


def test_a_finished_artefact_is_left_as_it_is(tmp_path: Path) -> None:
    first, builder, said = build(tmp_path / "out"), FakeBuilder(), list[str]()
    again = build(tmp_path / "out", builder, say=said.append)
    assert builder.asked == []
    assert again.digest() == first.digest()
    assert said == [
        f"[{index}/{len(EVERYTHING)}] {name}: already built"
        for index, name in enumerate(EVERYTHING, 1)
    ]


def test_a_build_that_was_broken_off_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "out", FakeBuilder(broken=NAMES[2]))
    assert not (tmp_path / "out" / MANIFEST).exists()
    builder = FakeBuilder()
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


def test_another_graph_is_added_to_those_that_are_there(tmp_path: Path) -> None:
    build(tmp_path / "out")
    spec, builder = small_spec(), FakeBuilder()
    more = verify_bucket(1, 4, 64, spec.junk, sampled=True)
    manifest = build(tmp_path / "out", builder, replace(spec, buckets=(*spec.buckets, more)))
    assert builder.asked == [more.name, "joint"]
    assert more in manifest.buckets


def test_the_first_graphs_are_completed_without_building_them_again(tmp_path: Path) -> None:
    whole, first = small_spec(), FakeBuilder()
    quick = first_graphs(whole, LIMITS)
    build(tmp_path / "out", first, quick)
    assert first.asked == ["weights", *(bucket.name for bucket in quick.graphs), "joint"]
    rest = FakeBuilder()
    manifest = build(tmp_path / "out", rest, whole)
    lacking = [bucket.name for bucket in whole.graphs if bucket not in quick.graphs]
    assert lacking
    assert rest.asked == [*lacking, "joint"]
    assert manifest.files == build(tmp_path / "fresh").files


def test_an_artefact_can_be_served_while_graphs_are_added_to_it(tmp_path: Path) -> None:
    whole = small_spec()
    manifest = build(tmp_path / "out", None, first_graphs(whole, LIMITS))
    lacking = [bucket.name for bucket in whole.graphs if bucket not in manifest.buckets]
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "out", FakeBuilder(broken=lacking[-1]), whole)
    assert read_manifest(tmp_path / "out") == manifest
    check_files(tmp_path / "out", manifest)


@pytest.mark.parametrize(
    ("builder", "spec"),
    [
        (FakeBuilder(version="2"), small_spec()),
        (FakeBuilder(), small_spec(dtype="bfloat16")),
        (FakeBuilder(), small_spec(compiler_flags={"-O2": ""})),
    ],
)
def test_another_compiler_precision_or_flag_builds_everything_again(
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


def test_another_generation_config_is_copied_without_compiling(tmp_path: Path) -> None:
    build(tmp_path / "out")
    (tmp_path / "checkpoint" / "generation_config.json").write_text('{"eos_token_id": 5}')
    builder = FakeBuilder()
    assert "generation_config.json" in build(tmp_path / "out", builder).files
    assert builder.asked == ["weights", "joint"]


def test_a_directory_that_is_being_rebuilt_has_no_manifest(tmp_path: Path) -> None:
    build(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "out", FakeBuilder(version="2", broken=NAMES[0]))
    with pytest.raises(BadArtifact, match="was not finished"):
        read_manifest(tmp_path / "out")


def test_a_builder_that_names_a_file_it_did_not_write_is_an_error(tmp_path: Path) -> None:
    class Forgetful(FakeBuilder):
        def finish(self, directory: Path, buckets: Any) -> list[str]:
            return ["graphs/none.bin"]

    with pytest.raises(BadArtifact, match=r"joint.*graphs/none\.bin"):
        build(tmp_path / "out", Forgetful())


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(InvalidRequest, match="cannot be written"):
        build(tmp_path / "out")


def test_a_second_build_into_a_directory_is_refused_with_the_number_of_the_first(
    tmp_path: Path,
) -> None:
    """The second starts in the middle of the first, and leaves what that one makes alone."""

    class Twice(FakeBuilder):
        def build(self, bucket: Bucket, directory: Path) -> list[str]:
            with pytest.raises(
                InvalidRequest,
                match=f"{tmp_path / 'out'} is being built by process {os.getpid()} on ",
            ):
                build(tmp_path / "out", FakeBuilder(version="2"))
            build(tmp_path / "elsewhere")
            return super().build(bucket, directory)

    manifest = build(tmp_path / "out", Twice())
    check_files(tmp_path / "out", manifest)
    assert build(tmp_path / "out").digest() == manifest.digest()


def test_the_lock_of_a_build_that_was_killed_or_failed_is_free(tmp_path: Path) -> None:
    (tmp_path / "out" / ".build").mkdir(parents=True)
    code = (
        "import time; from pathlib import Path; from compile.build.build import building_alone\n"
        f"with building_alone(Path({str(tmp_path / 'out')!r})): "
        "print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InvalidRequest, match=f"by process {other.pid} on "):
            build(tmp_path / "out")
        other.kill()
        other.wait()
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path / "out", FakeBuilder(broken=NAMES[0]))
        build(tmp_path / "out")


def test_the_fake_is_a_builder_and_the_wrong_one_is_refused(tmp_path: Path) -> None:
    builder: Builder = FakeBuilder("trn1")
    assert isinstance(builder, FakeBuilder)
    with pytest.raises(InvalidRequest, match=r"trn1.*cpu"):
        build(tmp_path / "out", builder)


def test_the_command_line_builds_pushes_and_pulls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Bucket] = []

    def fake(spec: CompileSpec, *_: Any, **__: Any) -> FakeBuilder:
        built.extend(spec.buckets)
        return FakeBuilder()

    monkeypatch.setattr(builders, "builder_of", fake)
    monkeypatch.setattr(graph_processes, "quiet_libraries", lambda: None)  # it stays so
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out, store, taken = (str(tmp_path / name) for name in ("out", "store", "taken"))
    sizes = ["--rows", "1", "--tree_sizes", "4", "--slots", "256", "--sampling", "greedy"]
    assert command_line.main(["--target", "cpu", "--out", out, *sizes, "--push", store]) == 0
    manifest = read_manifest(Path(out))
    assert [bucket.name for bucket in manifest.buckets] == [bucket.name for bucket in built]
    assert (
        manifest.command
        == f"outrider compile --target cpu --out {out} {' '.join(sizes)} --push {store}"
    )
    assert manifest.stop_ids == (1,)
    shown = capsys.readouterr()
    assert f"--digest {manifest.digest()}" in shown.out
    assert "[1/" in shown.err
    assert command_line.main(["--pull", store, "--digest", manifest.digest(), "--out", taken]) == 0
    assert read_manifest(Path(taken)) == manifest
    assert (
        command_line.main(["--pull", store, "--digest", "0" * 64, "--out", str(tmp_path / "other")])
        == 1
    )
    assert "has no manifests/" in capsys.readouterr().err
    again = str(tmp_path / "again")
    assert command_line.main(["--target", "cpu", "--out", again, *sizes, "--push", store]) == 0
    assert (
        f"in place of building, outrider compile --pull {store} --digest {manifest.digest()} "
        "--out DIR" in capsys.readouterr().err
    )
    assert command_line.main(["--target", "cpu", "--out", again, *sizes, "--push", store]) == 0
    assert "in place of building" not in capsys.readouterr().err
